#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# kvasir serve and HTTP's bytes: malformed and ambiguous requests (http_corpus.py), headers
# that come too slowly, too many connections from one address or for the limit of open files.
. "$(dirname "$0")/../support/api.bash"
tiny_model
start_server -q -m "$tiny" --api-key secret --max-body-mb 1 --cache-memory-mb 64
python3 "$SOURCE_DIR/tests/api/http_corpus.py" "${url##*:}" || die "http_corpus.py"
end_server TERM 0

start_server -q -m "$tiny" --cache-memory-mb 64 --head-timeout 1 --max-address-connections 3
python3 - "${url##*:}" <<'PY' || die "head timeout, connections of one address"
import socket, sys, time

def connect():
    return socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=20)

GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
for begin in (b"", b"GET ", GET + b"X: "):
    s, start = connect(), time.time()
    s.settimeout(0.2)
    while time.time() - start < 15:
        try:
            s.send(b"x" if begin == b"" else begin)
            begin = b"x"
            if not s.recv(100):
                break
        except TimeoutError:
            pass
        except ConnectionError:
            break
    assert time.time() - start < 8, (begin, time.time() - start)
    s.close()
# a connection that was used may be idle for longer than that
s = connect()
for _ in range(2):
    s.sendall(GET + b"\r\n")
    assert s.recv(1000).startswith(b"HTTP/1.1 200")
    time.sleep(3)
three = [s, connect(), connect()]
time.sleep(0.2)
try:
    late = connect()
    late.sendall(GET + b"\r\n")
    assert late.recv(100) == b"", "a fourth connection"
except ConnectionError:
    pass
three.pop().close()
time.sleep(0.3)
late = connect()
late.sendall(GET + b"\r\n")
assert late.recv(1000).startswith(b"HTTP/1.1 200")
PY
end_server TERM 0

# the limit of open files is raised as far as it may be
(
    ulimit -Sn 100
    start_server -q -m "$tiny" --cache-memory-mb 64 --max-connections 300
    limits=/proc/$(cat "/proc/$pid/task/$pid/children")/limits # of timeout's child
    grep -q '^Max open files *524 ' "${limits// /}" || die "$(grep open "${limits// /}")"
    end_server TERM 0
) || exit 1
(
    ulimit -n 200
    expect 2 'max-connections: 300 connections need 524 open files, but the limit is 200' serve \
        -q -m "$tiny" --port 0 --cache-memory-mb 64 --max-connections 300
) || exit 1
