#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# python/: the module's own tests over libkvasir with stories260K; mypy --strict on both, and on the
# example in docs/.
. "$(dirname "$0")/../support/api.bash"
stories=$SHARED_DIR/models/stories260K/hf
python=$SOURCE_DIR/.venv-python/bin/python
[ -d "$stories" ] || skip "no model: $stories"
[ -x "$python" ] || skip "no Python with cffi and numpy (tools/clients.sh installs it): $python"
library=$(dirname "$kvasir")/libkvasir.so.0
[ -e "$library" ] || die "no library: $library"
! nm -D "$library" | grep -q __asan || skip "Python would need the sanitizer loaded first"
! nm -D "$library" | grep -q __tsan || skip "Python would need the sanitizer loaded first"

cp -r "$SOURCE_DIR/python" .
"$python" python/build_api.py "$SOURCE_DIR/include" python/kvasir/_api.h || die "build_api.py"
export KVASIR_LIBRARY=$library KVASIR_TEST_MODEL=$stories KVASIR_TEST_PROGRAM=$kvasir
export PYTHONPATH=$PWD/python
timeout "$(limit 100)" "$python" python/tests/test_kvasir.py >out 2>err || die "the module's tests"
grep -q '^OK$' err || die "no tests"
cp "$SOURCE_DIR/docs/examples/answers.py" python/tests/
(cd python && timeout "$(limit 200)" "$python" -m mypy >../out 2>../err) || die "mypy --strict"
