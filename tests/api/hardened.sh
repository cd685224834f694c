#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What `make install` installs is hardened: position independent, bound at start, its relocations
# read-only, no executable stack, stack protector and fortified calls in use, no path to search for
# libraries in. Each object is marked for control-flow protection by the processor; a program gets
# the mark only if the C library's start files have it, too, and Debian 12's have not. Small
# programs that lack one of these show that each check can fail.
set -euo pipefail
build=$(dirname "$1")
if ! grep -q '^CMAKE_BUILD_TYPE:STRING=Release' "$build/CMakeCache.txt" ||
    grep -q '^KVASIR_SANITIZE:STRING=.' "$build/CMakeCache.txt"; then
    echo "skipped: only release builds are hardened"
    exit 77
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

case $(uname -m) in
x86_64) branches='IBT, SHSTK' ;;
aarch64) branches='BTI, PAC' ;;
*) branches= ;;
esac

# Prints what is wrong with FILE, nothing if it is hardened.
lacks() { # FILE
    local file=$1 headers dynamic symbols notes
    headers=$(readelf -Wl "$file") dynamic=$(readelf -Wd "$file")
    symbols=$(readelf -W --dyn-syms "$file")
    grep -q 'Elf file type is DYN' <<<"$headers" || echo "position independence"
    grep -q GNU_RELRO <<<"$headers" || echo "read-only relocations"
    grep -Eq 'BIND_NOW|FLAGS_1.*NOW' <<<"$dynamic" || echo "binding at start"
    ! grep -q TEXTREL <<<"$dynamic" || echo "text without relocations"
    ! grep -Eq 'RPATH|RUNPATH' <<<"$dynamic" || echo "a fixed search path"
    grep -Eq 'GNU_STACK.* RW  ' <<<"$headers" || echo "a stack that is not executable"
    grep -q __stack_chk_fail <<<"$symbols" || echo "the stack protector"
    grep -Eq '__[a-z]+_chk@' <<<"$symbols" || echo "fortified calls"
}

# Prints how many objects of an archive, or of one object's file, are not marked.
unmarked() { # FILE
    local all=1 marked
    [ -z "$branches" ] && echo 0 && return
    [[ $1 != *.a ]] || all=$(ar t "$1" | wc -l)
    marked=$(readelf -Wn "$1" 2>/dev/null | grep -c "$branches" || true)
    echo $((all - marked))
}

DESTDIR=$scratch/root cmake --install "$build" --prefix /usr >/dev/null
for file in bin/kvasir lib/libkvasir.so; do
    missing=$(lacks "$scratch/root/usr/$file")
    [ -z "$missing" ] || { echo "$file lacks: $missing" && exit 1; }
done
n=$(unmarked "$scratch/root/usr/lib/libkvasir.a")
[ "$n" = 0 ] || { echo "$n objects lack control-flow protection" && exit 1; }

# Each check must be able to fail.
cat >"$scratch/small.c" <<'C'
#include <stdio.h>
#include <string.h>
int main(int n, char **words) {
    char copy[16 * 4];
    strcpy(copy, words[n - 1]);
    return puts(copy) < 0;
}
C
good=(-O2 -fPIE -pie -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3 -fstack-protector-strong
    -Wl,-z,relro,-z,now)
try() { # NAME FLAG...: with these flags, too, NAME is missing; '': nothing is
    local name=$1
    shift
    cc "${good[@]}" "$@" "$scratch/small.c" -o "$scratch/small" 2>/dev/null
    [ "$(lacks "$scratch/small" | sed -n 1p)" = "$name" ] ||
        { echo "with $*: expected '$name', found '$(lacks "$scratch/small")'" && exit 1; }
}
try ''
try 'position independence' -no-pie -fno-pie
try 'read-only relocations' -Wl,-z,norelro
try 'binding at start' -Wl,-z,lazy
try 'a fixed search path' -Wl,-rpath,/tmp
try 'a stack that is not executable' -z execstack
try 'the stack protector' -fno-stack-protector
try 'fortified calls' -U_FORTIFY_SOURCE
cc -O2 -c "$scratch/small.c" -o "$scratch/small.o"
[ -z "$branches" ] || [ "$(unmarked "$scratch/small.o")" = 1 ] ||
    { echo "an object without control-flow protection is not found" && exit 1; }
echo "hardened: bin/kvasir and lib/libkvasir.so"
