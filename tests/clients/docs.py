# SPDX-License-Identifier: Apache-2.0
"""docs.py URL PAGE...: runs the Python of pages in docs/clients against a server at URL instead of
the one that they name."""
import os
import re
import subprocess
import sys

SERVER = "http://127.0.0.1:8080"
ENVIRONMENT = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}

url, pages = sys.argv[1], sys.argv[2:]
assert pages
for page in pages:
    with open(page, encoding="utf-8") as f:
        blocks = re.findall(r"^```python\n(.*?)^```$", f.read(), re.M | re.S)
    for block in blocks:
        assert SERVER in block, f"{page}: no server"
        run = subprocess.run([sys.executable, "-B", "-c", block.replace(SERVER, url)], timeout=120,
                             env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             check=False)
        if run.returncode or not run.stdout.strip():
            sys.exit(f"docs.py: FAILED: {page}:\n{run.stdout.decode()[-2000:]}")
    print(f"docs.py: {os.path.basename(page)}: {len(blocks)} run")
