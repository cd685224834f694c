#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# installs.sh [--built] [WAY...]: installs Kvasir in a bare Debian 12, as its documents say, in at
# most three commands that are printed and timed:
#   source   git clone, to the demo's answer
#   wheel    pip install, to a streamed answer (Debian with python3-pip)
#   wheel-aarch64  the same for 64-bit Arm, under qemu-user: Debian is unpacked only, and pip
#            installs into a folder, because nothing here can run as Arm's root
#   deb      apt install, to a service that answers /health
#   tarball  the archive of `make dist`, to an answer
#   image    dist/Dockerfile, to a container that is healthy
# All of them without arguments. --built takes the packages of an earlier run. Each way has a fresh
# chroot (mmdebstrap) or a fresh image (buildah). Sources are those of HEAD. The log is kept:
# bench/results/installs-DATE-COMMIT.log.
#
# No systemd runs in a chroot: the unit's ExecStart is run by hand as an unprivileged user, with the
# keys where LoadCredential= would put them. Buildah isolates by chroot, because containers may not
# run inside a container, and allows 1,024 open files: the image's user, environment and entry
# point are its own.
# Needs root, tools/deps.sh soak, and Debian's and PyPI's servers.
set -euo pipefail
cd "$(dirname "$0")/.."
exec </dev/null
built=
[ "${1:-}" != --built ] || { built=1 && shift; }
ways=("$@")
[ $# != 0 ] || ways=(source wheel wheel-aarch64 deb tarball image)
[ "$(id -u)" = 0 ] || { echo "installs: needs root, for chroots" >&2 && exit 1; }

work=$PWD/build-installs
base=$work/debian.tar
model=/srv/models/SmolLM2-135M-Instruct.Q4_1.gguf
prompt='Name three colours.'
commit=$(git describe --always --dirty)
mkdir -p "$work" bench/results
log=bench/results/installs-$(date -u +%Y-%m-%d)-$commit.log
exec > >(sed -u -e "s|$PWD|.|g" | tee "$log") 2>&1
root='' container=''
finish() {
    [ -z "$root" ] || rm -rf --one-file-system "$root"
    [ -z "$container" ] || buildah rm "$container" >/dev/null
}
trap finish EXIT

die() {
    echo "installs: $*"
    exit 1
}
# A fresh Debian in $root, with the name servers and the certificates of this machine.
bare() {
    [ -z "$root" ] || rm -rf --one-file-system "$root"
    root=$(mktemp -d "$work/root.XXXXXX")
    chmod 755 "$root"
    tar -C "$root" -xf "$base"
    cp -L /etc/resolv.conf "$root/etc/"
    cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
}
# A command in $root, with /proc, which its end takes away, and nothing of this session.
enter() { # COMMAND...
    unshare --mount bash -c 'mount -t proc proc "$0/proc" && exec env -i HOME=/root LANG=C.UTF-8 \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        DEBIAN_FRONTEND=noninteractive chroot "$0" "$@"' "$root" "$@"
}
in_root() { # COMMAND: by a shell of root's
    enter bash -c "cd /root && $1"
}
seconds() { # COMMAND...: runs it, its output to $work/out; the last line says how long it took
    local from=$EPOCHREALTIME
    "$@" >"$work/out" 2>&1 || { tail -n 25 "$work/out" && die "failed: $*"; }
    awk -v a="$from" -v b="$EPOCHREALTIME" 'BEGIN { printf "  %6.1f s\n", b - a }'
}
step() { # COMMAND in $root
    echo "  # $1"
    seconds in_root "$1"
}
answer() { # the last lines that the program printed
    tail -n "${1:-3}" "$work/out" | cut -c1-160 | sed 's/^/    > /'
}
healthy() { # PORT PID: /health answers within a minute
    local i
    for ((i = 0; i < 600; i++)); do
        if curl -sf -o /dev/null "http://127.0.0.1:$1/health"; then return; fi
        kill -0 "$2" 2>/dev/null || die "the server has ended: $(tail -n 5 "$work/server")"
        sleep 0.1
    done
    die "no answer of /health"
}
ends() { # PID: of the shell that waits for a server, which gets SIGTERM
    kill "$(ps -o pid= --ppid "$1" | tr -d ' ')"
    wait "$1" || die "the server ended with $?"
}
serving() { # PID: the kvasir below it
    local child
    for child in $(ps -o pid= --ppid "$1"); do
        if [ "$(ps -o comm= -p "$child")" = kvasir ]; then echo "$child"; else serving "$child"; fi
    done
}
free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'
}

write_stream() { # FILE MODELS: a program that streams an answer
    cat >"$1" <<PY
import kvasir, pathlib
[path] = pathlib.Path("$2").glob("SmolLM2*.gguf")
with kvasir.Model(path) as model:
    n = 0
    for text in model.stream([{"role": "user", "content": "$prompt"}], max_tokens=40):
        print(text, end="", flush=True)
        n += 1
assert n > 3, n
PY
}

from_source() {
    git bundle create -q "$root/root/kvasir.git" HEAD
    step 'apt-get update -q && apt-get install -y -q --no-install-recommends git make'
    step 'git clone -q kvasir.git kvasir'
    step 'cd kvasir && make demo'
    answer 12
}

from_wheel() {
    in_root 'apt-get update -q && apt-get install -y -q --no-install-recommends python3-pip' \
        >"$work/out" 2>&1 || { tail -n 5 "$work/out" && die "no python3-pip"; }
    cp build-wheel/dist/*.whl "$root/root/"
    step 'pip install --break-system-packages -q ./kvasir-*.whl'
    step 'kvasir pull smollm2:135m'
    write_stream "$root/root/stream.py" /root/.local/share/kvasir/models
    step 'python3 stream.py'
    answer
}

from_wheel-aarch64() {
    local emulated=$work/aarch64 as_pip=()
    [ -d "$emulated" ] || mmdebstrap --quiet --variant=extract --architectures=arm64 \
        --include=python3,libstdc++6 bookworm "$emulated" || die "no Debian for Arm"
    for tag in 2_36 2_28 2_17; do as_pip+=(--platform "manylinux_${tag}_aarch64"); done
    rm -rf "$work/site"
    echo "  # pip install ./kvasir-*_aarch64.whl"
    seconds build-wheel/venv/bin/pip install -q --target "$work/site" --only-binary :all: \
        --python-version 3.11 "${as_pip[@]}" build-wheel-aarch64/dist/*.whl
    echo "  # python3 stream.py (qemu-aarch64)"
    write_stream "$work/stream.py" "$PWD/models"
    seconds env PYTHONHOME="$emulated/usr" PYTHONPATH="$work/site" PYTHONDONTWRITEBYTECODE=1 \
        qemu-aarch64 -cpu max -L "$emulated" "$emulated/usr/bin/python3.11" "$work/stream.py"
    answer
    qemu-aarch64 -L "$emulated" "$work/site/kvasir/kvasir" version | sed 's/^/    > /'
}

from_deb() {
    local port server
    cp build-deb/kvasir_*.deb "$root/root/"
    step 'apt-get update -q && apt-get install -y -q ./kvasir_*.deb'
    grep '^kvasir: ' "$work/out" | sed 's/^/    > /' || die "nothing said about the model"
    step 'KVASIR_MODELS_DIR=/srv/models kvasir pull smollm2:135m'
    port=$(free_port)
    # What systemd does with the unit, by hand.
    local unit=$root/lib/systemd/system/kvasir.service start
    grep -qx 'ConditionPathExists=/etc/kvasir/config.json' "$unit" || die "no condition"
    start=$(sed -n '/^ExecStart=/,/[^\\]$/p' "$unit" | sed 's/^ExecStart=//' | tr -d '\\\n')
    echo "  # echo '{\"model\": \"$model\"}' >/etc/kvasir/config.json; systemctl restart kvasir"
    echo "    (by hand: $start)"
    echo "{\"model\": \"$model\", \"port\": $port}" >"$root/etc/kvasir/config.json"
    install -d -m 755 "$root/run/credentials"
    install -m 400 -o 65534 "$root/etc/kvasir/keys" "$root/run/credentials/keys"
    enter env CREDENTIALS_DIRECTORY=/run/credentials setpriv --reuid 65534 --regid 65534 \
        --clear-groups bash -c "exec $start" >"$work/server" 2>&1 &
    server=$!
    seconds healthy "$port" $server
    [ "$(curl -s -o /dev/null -w '%{http_code}' "http://127.0.0.1:$port/v1/models")" = 401 ] ||
        die "the server wants no key"
    curl -sf -H "Authorization: Bearer $(cat "$root/etc/kvasir/keys")" \
        "http://127.0.0.1:$port/v1/chat/completions" -d "{\"max_tokens\": 20, \"messages\":
        [{\"role\": \"user\", \"content\": \"$prompt\"}]}" >"$work/out" || die "no answer"
    answer
    ends $server
    in_root 'apt-get purge -y -q kvasir' >"$work/out" 2>&1 || die "it cannot be purged"
    [ -z "$(find "$root/etc" -path '*kvasir*')" ] || die "purged, but not from /etc"
}

from_tarball() {
    cp build-dist/kvasir-*.tar.gz "$root/root/"
    step 'tar -C /usr/local --strip-components=1 -xf kvasir-*.tar.gz'
    step 'kvasir pull smollm2:135m'
    step "kvasir generate -m smollm2:135m -p '$prompt' -n 40"
    answer 8
}

from_image() {
    local port server entry
    echo "  # docker build -f dist/Dockerfile -t kvasir ."
    container=$(buildah from scratch)
    buildah add -q "$container" "$base" / >/dev/null
    buildah commit -q --rm "$container" kvasir-check/debian:12 >/dev/null
    container=
    rm -rf "$work/context"
    mkdir "$work/context"
    git archive HEAD | tar -x -C "$work/context"
    seconds buildah build -q --isolation chroot --format docker -t kvasir-check/kvasir \
        --build-arg BASE=kvasir-check/debian:12 -f dist/Dockerfile "$work/context"
    rm -rf "$work/context"
    container=$(buildah from -q kvasir-check/kvasir)
    entry=$(buildah inspect --format '{{range .Docker.Config.Entrypoint}}{{.}} {{end}}' \
        "$container")
    port=$(free_port)
    echo "  # docker run -v /srv/models:/models:ro -e KVASIR_MODEL=... -e KVASIR_API_KEY=... kvasir"
    echo "    (buildah run: $entry)"
    buildah run --isolation chroot -v "$PWD/models:/models:ro" -e KVASIR_API_KEY=secret \
        -e KVASIR_PORT="$port" -e KVASIR_MODEL="/models/${model##*/}" \
        -e KVASIR_MAX_CONNECTIONS=256 "$container" -- $entry \
        >"$work/server" 2>&1 &
    server=$!
    seconds healthy "$port" $server
    # The image's own check, inside.
    buildah inspect --format '{{index .Docker.Config.Healthcheck.Test 3}}' "$container" \
        >"$work/check"
    buildah run --isolation chroot -e KVASIR_PORT="$port" "$container" -- \
        bash -c "$(cat "$work/check")" || die "HEALTHCHECK fails"
    buildah run --isolation chroot "$container" -- id -u | grep -qx 65534 || die "runs as root"
    kill "$(serving $server)"
    wait $server || die "the server ended with $?"
}

echo "installs: $commit, $(date -u +%FT%TZ)"
echo "installs: $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2-), $(nproc) cores, load $(
    cut -d' ' -f1 /proc/loadavg)"
tools/deps.sh soak
tools/fetch-model.sh
[ -f "$base" ] || { echo "installs: a bare Debian 12" &&
    seconds mmdebstrap --variant=minbase --include=ca-certificates bookworm "$base"; }
for way in "${ways[@]}"; do
    case ${built:+built-}$way in
    deb) echo "installs: building $way" && seconds tools/deb.sh ;;
    wheel) echo "installs: building $way" && seconds tools/wheel.sh ;;
    wheel-aarch64) echo "installs: building $way" && seconds tools/wheel.sh --aarch64 ;;
    tarball) echo "installs: building $way" && seconds make dist ;;
    source | image | built-*) ;;
    *) die "no way is called $way" ;;
    esac
done
for way in "${ways[@]}"; do
    echo "installs: $way, load $(cut -d' ' -f1 /proc/loadavg)"
    case $way in wheel-aarch64 | image) ;; *) bare ;; esac
    "from_$way"
done
echo "installs: passed (${ways[*]})"
