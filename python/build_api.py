# SPDX-License-Identifier: Apache-2.0
"""build_api.py INCLUDE OUT: the declarations of include/kvasir.h as cffi reads them.

The C compiler's preprocessor does the work; what cffi cannot read (inline functions) is left out.
So the module has no second copy of a struct.
"""
import os
import re
import subprocess
import sys
import tempfile


def main(include: str, out: str) -> None:
    with tempfile.TemporaryDirectory() as empty:
        for name in "stdbool.h", "stddef.h", "stdint.h":
            open(os.path.join(empty, name), "w").close()
        text = subprocess.run(
            [os.environ.get("CC", "cc"), "-E", "-P", "-nostdinc", "-isystem", empty, "-I", include,
             "-x", "c", os.path.join(include, "kvasir.h")],
            check=True, capture_output=True, text=True).stdout
    text = text.replace('__attribute__((visibility("default")))', "")
    text = re.sub(r"static inline[^{;]*\{.*?\n\}\n?", "", text, flags=re.S)
    with open(out, "w", encoding="utf-8") as f:
        f.write("/* made by python/build_api.py from include/kvasir.h */\n" + text)


if __name__ == "__main__":
    main(*sys.argv[1:])
