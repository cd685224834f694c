#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What `make install` installs is hardened: position independent, bound at start, its relocations
# read-only, no executable stack, stack protector and fortified calls in use, no path to search for
# libraries in, large frames touched page by page. What leaves no trace in a file (FORTIFY's level,
# variables that begin as zeros) is read from the compile commands of the same build: each source
# that is not a kernel has each flag that the compiler knows. Each object is marked for control-flow
# protection by the processor; a program gets the mark only if the C library's start files have it,
# too, and Debian 12's have not. Small programs and changed commands that lack one of these show
# that each check can fail.
set -euo pipefail
build=$(dirname "$1")
if ! grep -q '^CMAKE_BUILD_TYPE:STRING=Release' "$build/CMakeCache.txt" ||
    grep -q '^KVASIR_SANITIZE:STRING=.' "$build/CMakeCache.txt"; then
    echo "skipped: only release builds are hardened"
    exit 77
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

probe= # what touches the next page of a large frame
case $(uname -m) in
x86_64) branches='IBT, SHSTK' probe='or[a-z]* *\$0x0,(0x[0-9a-f]*)?\(%[er]sp\)' ;;
aarch64) branches='BTI, PAC' probe='str[[:space:]]*xzr, \[sp, #1024\]' ;;
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
    [ -z "$probe" ] || [ "$(objdump -d "$file" | grep -Ec "$probe")" != 0 ] ||
        echo "stack clash protection"
}

# Prints how many objects of an archive, or of one object's file, are not marked.
unmarked() { # FILE
    local all=1 marked
    [ -z "$branches" ] && echo 0 && return
    [[ $1 != *.a ]] || all=$(ar t "$1" | wc -l)
    marked=$(readelf -Wn "$1" 2>/dev/null | grep -c "$branches" || true)
    echo $((all - marked))
}

# Prints the sources in src/ whose compile command lacks a flag; of several, the last one counts.
lack_flags() { # COMPILE_COMMANDS
    python3 - "$1" "$SOURCE_DIR/src/" "$(uname -m)" <<'PY'
import functools, json, re, shlex, subprocess, sys
path, root, machine = sys.argv[1:]
branch = {"x86_64": "-fcf-protection=full", "aarch64": "-mbranch-protection=standard"}.get(machine)
# kernels get no lengths from outside; CMakeLists.txt says why they go without the others
KERNELS = re.compile(r"backend/cpu/(ref|simd|avx2|avx512|amx|neon)/"
                     r"|backend/cpu/centre\.c$|util/math\.c$")

@functools.cache
def compiles(compiler, flag, text=""):
    command = [compiler, "-O2", "-Werror", *shlex.split(flag), "-xc", "-fsyntax-only", "-"]
    return subprocess.run(command, input=text, text=True, capture_output=True).returncode == 0

def needed(compiler, kernel):
    level = compiles(compiler, "-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3",
                     "#include <features.h>\n#if __USE_FORTIFY_LEVEL < 3\n#error\n#endif\n")
    yield "-D_FORTIFY_SOURCE=" + "23"[level], r"-[DU]_FORTIFY_SOURCE"
    if branch and compiles(compiler, branch):
        yield branch, re.escape(branch.split("=")[0])
    if not kernel:
        yield "-fstack-protector-strong", r"-f(no-)?stack-protector"
        for flag, family in (("-fstack-clash-protection", r"-f(no-)?stack-clash-protection"),
                             ("-ftrivial-auto-var-init=zero", r"-ftrivial-auto-var-init")):
            if compiles(compiler, flag):
                yield flag, family

seen = 0
for entry in json.load(open(path)):
    name = entry["file"]
    if not name.startswith(root) or not name.endswith(".c"):
        continue
    seen += 1
    words = shlex.split(entry["command"])
    compiler = next(w for w in words if not w.endswith("ccache"))
    for flag, family in needed(compiler, KERNELS.search(name) is not None):
        last = [w for w in words if re.match(family, w)][-1:]
        if last != [flag]:
            print(f"{name[len(root):]}: {flag}")
if seen < 100:
    print(f"only {seen} sources")
PY
}

DESTDIR=$scratch/root cmake --install "$build" --prefix /usr >/dev/null
for file in bin/kvasir lib/libkvasir.so; do
    missing=$(lacks "$scratch/root/usr/$file")
    [ -z "$missing" ] || { echo "$file lacks: $missing" && exit 1; }
done
n=$(unmarked "$scratch/root/usr/lib/libkvasir.a")
[ "$n" = 0 ] || { echo "$n objects lack control-flow protection" && exit 1; }
commands=$build/compile_commands.json
missing=$(lack_flags "$commands")
[ -z "$missing" ] || { sed 's/^/compiled without a flag: /' <<<"$missing" && exit 1; }

# Each check must be able to fail.
fortify=-D_FORTIFY_SOURCE=[23] init=-ftrivial-auto-var-init
for change in "s/$fortify/-D_FORTIFY_SOURCE=1/" "s/$fortify/& -U_FORTIFY_SOURCE/" "s/$fortify//" \
    's/-fstack-protector-strong//' 's/-fstack-protector-strong/& -fno-stack-protector/' \
    's/-fstack-clash-protection//' 's/-fstack-clash-protection/& -fno-stack-clash-protection/' \
    "s/$init=zero//" "s/$init=zero/$init=pattern/" \
    's/-fcf-protection=full\|-mbranch-protection=standard//'; do
    sed "/-c [^ ]*src\/util\/json.c/ $change" "$commands" >"$scratch/commands"
    cmp -s "$commands" "$scratch/commands" && continue # a flag that the compiler does not know
    [[ $(lack_flags "$scratch/commands") == 'util/json.c: -'* ]] ||
        { echo "with $change: found '$(lack_flags "$scratch/commands")'" && exit 1; }
done
cat >"$scratch/small.c" <<'C'
#include <stdio.h>
#include <string.h>
int main(int n, char **words) {
    char copy[1 << 16];
    strcpy(copy, words[n - 1]);
    return puts(copy) < 0;
}
C
good=(-O2 -fPIE -pie -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3 -fstack-protector-strong
    -fstack-clash-protection -Wl,-z,relro,-z,now)
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
[ -z "$probe" ] || try 'stack clash protection' -fno-stack-clash-protection
cc -O2 -c "$scratch/small.c" -o "$scratch/small.o"
[ -z "$branches" ] || [ "$(unmarked "$scratch/small.o")" = 1 ] ||
    { echo "an object without control-flow protection is not found" && exit 1; }
echo "hardened: bin/kvasir and lib/libkvasir.so"
