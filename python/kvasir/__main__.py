# SPDX-License-Identifier: Apache-2.0
"""`kvasir` and `python -m kvasir`: the program that the wheel holds."""
from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    program = Path(__file__).parent / "kvasir"
    if not program.exists():
        sys.exit("kvasir: this installation has no program, only the module")
    os.execv(program, ["kvasir", *sys.argv[1:]])


if __name__ == "__main__":
    main()
