#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# An installation can be used and removed: kvasir.h is installed with the headers that it includes,
# another program compiles through pkg-config against the shared and the static library, only
# kvasir_ names are visible in either, the systemd unit names the installed program, and
# `make uninstall` removes every file.
set -euo pipefail
build=$(dirname "$1")
: "${SOURCE_DIR:?}"
if grep -q '^KVASIR_SANITIZE:STRING=.' "$build/CMakeCache.txt"; then
    echo "skipped: sanitizer builds are not installed"
    exit 77
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

export DESTDIR=$scratch/root
cmake --install "$build" --prefix /opt/kvasir >"$scratch/log"
at=$DESTDIR/opt/kvasir
for file in bin/kvasir lib/libkvasir.a lib/libkvasir.so include/kvasir.h include/kvasir_status.h \
    include/kvasir_text.h include/kvasir_batch.h include/kvasir_calibrate.h \
    include/kvasir_engine.h include/kvasir_stored.h \
    lib/pkgconfig/kvasir.pc share/man/man1/kvasir-cache-prompt.1 \
    share/man/man1/kvasir-batch.1 share/man/man1/kvasir-simulate.1 \
    share/man/man1/kvasir-serve.1 share/man/man1/kvasir-chat.1 lib/systemd/system/kvasir.service; do
    [ -e "$at/$file" ] || { echo "not installed: $file" && exit 1; }
done
"$at/bin/kvasir" --help >/dev/null
unit=$scratch/unit # the differences from the source
diff "$SOURCE_DIR/dist/kvasir.service" "$at/lib/systemd/system/kvasir.service" >"$unit" || true
grep -q '^> ExecStart=/opt/kvasir/bin/kvasir serve ' "$unit" &&
    [ "$(grep -c '^>' "$unit")" = 1 ] || { echo "the unit:" && cat "$unit" && exit 1; }

names=$({
    nm -D --defined-only "$at/lib/libkvasir.so"
    nm -g --defined-only "$at/lib/libkvasir.a"
} | awk 'NF == 3 && $2 != "A" { print $3 }' | grep -v '^kvasir_' || true)
[ -z "$names" ] || { echo "visible outside the library:" $names && exit 1; }

cat >"$scratch/user.c" <<'C'
#include <kvasir.h>
#include <stdio.h>

static int fail(void) { return 7; } /* ours has this name too, inside */

int main(void) {
    puts(kvasir_status_text(KVASIR_OK));
    return fail() - 7;
}
C
export PKG_CONFIG_PATH=$at/lib/pkgconfig
cd "$scratch"
cc user.c $(pkg-config --cflags --libs kvasir) -o with_shared
objdump -p with_shared | grep -q 'NEEDED.*libkvasir\.so\.[0-9]' || { echo "no soname" && exit 1; }
LD_LIBRARY_PATH=$at/lib ./with_shared | grep -qx ok
rm "$at"/lib/libkvasir.so*
cc user.c $(pkg-config --static --cflags --libs kvasir) -o with_static
./with_static | grep -qx ok

cc "$SOURCE_DIR/docs/examples/answers.c" $(pkg-config --static --cflags --libs kvasir) -o answers

"$SOURCE_DIR/tools/uninstall.sh" "$build" /opt/kvasir >"$scratch/log"
left=$(find "$DESTDIR" -not -type d)
[ -z "$left" ] || { echo "left behind:" $left && exit 1; }
