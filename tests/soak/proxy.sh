#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# proxy.sh PROGRAM: nginx and Caddy (Debian's) with the configurations that docs/deploy.md shows and
# TLS with a self-signed certificate: streams arrive piece by piece, the server notices through the
# proxy that a client disconnects, private paths are not reachable, the page may make requests, and
# the log has the clients' own addresses.
. "$(dirname "$0")/../support/api.bash"
name=llm.example.org
model=$api_scratch/scripted
python3 "$SOURCE_DIR/tests/support/scripted_model.py" "$model" \
    "$SOURCE_DIR/tests/clients/scripts.json" || die "scripted_model.py"
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj "/CN=$name" \
    -addext "subjectAltName=DNS:$name" -keyout key.pem -out cert.pem 2>err || die "openssl"
start_server -q -m "$model" --api-key secret --allowed-hosts "$name" --keepalive 1 \
    --trusted-proxies 127.0.0.1 \
    --prefill-chunk 1 --threads 1
kvasir_port=${url##*:}

# The indented block after the line $1 in deploy.md, without its indent.
shown() {
    awk -v start="$1" '$0 ~ start { on = 1; next }
        on && /^    / { print substr($0, 5); got = 1 }
        on && got && /^[^ ]/ { exit }' "$SOURCE_DIR/docs/deploy.md" >shown
    [ -s shown ] || die "docs/deploy.md shows nothing after a line that matches $1"
    cat shown
}
free_port() {
    python3 -c 'import socket
s = socket.socket()
s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])'
}
through() { # PATH FLAG...
    curl -sk --resolve "$name:$port:127.0.0.1" -H 'Authorization: Bearer secret' \
        "https://$name:$port$1" "${@:2}"
}
status() { through "$@" -o /dev/null -w '%{http_code}'; }
running() { curl -s -H 'Authorization: Bearer secret' "$url/v1/status" >out && json num_running; }

# Checks what a reverse proxy must do, with the one on $port.
check() { # NAME ADDRESS: of a client on this machine
    for _ in {1..100}; do
        [ "$(status /health)" = 200 ] && break
        sleep 0.1
    done
    [ "$(status /health)" = 200 ] || die "$1: /health: $(status /health)"
    [ "$(status /v1/models)" = 200 ] || die "$1: /v1/models"
    for path in /metrics /v1/cache /v1/cache/stats; do
        [ "$(status $path)" = 404 ] || die "$1: $path is there"
    done
    [ "$(status /v1/models -H "Origin: https://$name:$port")" = 200 ] || die "$1: its page"
    [ "$(status /v1/models -H 'Origin: https://evil.example')" = 403 ] || die "$1: any page"
    [ "$(status /v1/none --interface "$2" -H 'X-Forwarded-For: 192.0.2.1')" = 404 ] ||
        die "$1: a path that is not there"
    for _ in {1..50}; do
        grep -q " status=404 client=${2//./\\.}$" "$log" && break
        sleep 0.1
    done
    grep -q " status=404 client=${2//./\\.}$" "$log" || die "$1: the client's address"
    head -c 34000000 /dev/zero >large
    [ "$(status /v1/completions --data-binary @large)" = 413 ] || die "$1: 34 MB are taken"

    # after each second of silence a comment, which arrives while the prompt is still evaluated
    printf '{"prompt": "%060000d", "stream": true, "max_tokens": 5}' 0 >long.json
    through /v1/completions -N --max-time 5 -d @long.json >came
    [ "$(grep -c '^: keepalive' came)" -ge 2 ] || die "$1: no comments: $(head -c 200 came)"
    ! grep -q '^data' came || die "$1: the prompt is too short for this test"
    for _ in {1..50}; do
        [ "$(running)" = 0 ] && break
        sleep 0.1
    done
    [ "$(running)" = 0 ] || die "$1: nobody noticed that the client went away"
    through /v1/completions -N >came \
        -d '{"prompt": "say <|plain|>", "stream": true, "max_tokens": 60}'
    grep -q '^data: \[DONE\]' came || die "$1: no stream"
    echo "proxy.sh: $1"
}

port=$(free_port)
{
    echo "pid $PWD/nginx.pid; error_log $PWD/nginx.log; daemon off; master_process off;"
    echo "events {} http { access_log off; client_body_temp_path $PWD/b; proxy_temp_path $PWD/p;"
    echo "fastcgi_temp_path $PWD/f; uwsgi_temp_path $PWD/u; scgi_temp_path $PWD/s;"
    shown '^nginx:$' | sed -e "s#127.0.0.1:8080#127.0.0.1:$kvasir_port#" -e '/http2 on/d' \
        -e "s#listen 443 ssl#listen 127.0.0.1:$port ssl http2#" \
        -e "s#/etc/letsencrypt/live/$name/fullchain.pem#$PWD/cert.pem#" \
        -e "s#/etc/letsencrypt/live/$name/privkey.pem#$PWD/key.pem#"
    echo "}"
} >nginx.conf
PATH=$PATH:/usr/sbin
if command -v nginx >/dev/null; then
    nginx -c "$PWD/nginx.conf" -p "$PWD" 2>err &
    servers+=($!)
    check nginx 127.0.0.2
else
    echo "proxy.sh: nginx left out, it is not installed"
fi

port=$(free_port)
{
    printf '{\n\tadmin off\n\tauto_https off\n\tskip_install_trust\n}\n'
    shown '^Caddy fetches' | sed -e "s#127.0.0.1:8080#127.0.0.1:$kvasir_port#" \
        -e "s#^$name {#https://$name:$port {\nbind 127.0.0.1\ntls $PWD/cert.pem $PWD/key.pem#"
} >Caddyfile
if command -v caddy >/dev/null; then
    XDG_DATA_HOME=$PWD XDG_CONFIG_HOME=$PWD caddy run --config Caddyfile --adapter caddyfile \
        >caddy.log 2>err &
    servers+=($!)
    check Caddy 127.0.0.3
else
    echo "proxy.sh: Caddy left out, it is not installed"
fi
exit 0
