# SPDX-License-Identifier: Apache-2.0
"""http_corpus.py PORT: requests as raw bytes, for a server with the key "secret". Each is sent at
once and in small pieces. A refused one gets exactly one answer, an error as JSON, and the
connection closes: the request that follows it in the same bytes is never answered. http_corpus.sh
starts the server. tests/soak/framing.py sends them through proxies."""
import json
import re
import socket
import sys

PORT = 0
BODY = b'{"prompt":[1],"max_tokens":1}'  # 29 bytes
CHUNK = b"1d\r\n" + BODY + b"\r\n"
CHUNKS = CHUNK + b"0\r\n\r\n"
NEXT = b"GET /version HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: secret\r\n\r\n"
NAMES = b"Host: localhost\r\nX-Api-Key: secret\r\n"


def get(headers=b"", path=b"/health", version=b"1.1", host=b"Host: localhost\r\n"):
    return b"GET " + path + b" HTTP/" + version + b"\r\n" + host + headers + b"\r\n"


def post(headers, body=b"", version=b"1.1"):
    return b"POST /v1/completions HTTP/" + version + b"\r\n" + NAMES + headers + b"\r\n" + body


def chunked(body):
    return post(b"Transfer-Encoding: chunked\r\n", body)


CL = b"Content-Length: 29\r\n"
REFUSED = [
    # the head's lines
    ("empty header name", get(b": x\r\n"), 400),
    ("empty header name, request", b"GET /health HTTP/1.1\r\nHost: x\r\n: x\r\n" + NEXT, 400),
    ("folded Content-Length", post(b"Content-Length:\r\n 29\r\n", BODY), 400),
    ("folded Transfer-Encoding", post(b"Transfer-Encoding:\r\n chunked\r\n", CHUNKS), 400),
    ("folded line", get(b"X: a\r\n\tb\r\n"), 400),
    ("folded first line", b"GET /health HTTP/1.1\r\n Host: x\r\n\r\n", 400),
    ("bare CR in a value", get(b"X: a\rb\r\n"), 400),
    ("bare CR hides a header", post(b"Foo: x\rTransfer-Encoding: chunked\r\n" + CL, BODY), 400),
    ("bare CR at a line's end", b"GET /health HTTP/1.1\rHost: x\r\r", 400),
    ("bare LF everywhere", b"GET /health HTTP/1.1\nHost: x\n\n", 400),
    ("bare LF after a header", get(b"X: y\n"), 400),
    ("bare LF ends the head", b"GET /health HTTP/1.1\r\nHost: x\r\n\n", 400),
    ("NUL in a value", get(b"X: a\0b\r\n"), 400),
    ("NUL in a name", get(b"X\0: a\r\n"), 400),
    ("NUL after the length", post(b"Content-Length: 29\0\r\n", BODY), 400),
    ("NUL after chunked", post(b"Transfer-Encoding: chunked\0\r\n", CHUNKS), 400),
    ("NUL after the key", get(b"Authorization: Bearer secret\0junk\r\n"), 400),
    ("control character in a value", get(b"X: \x0bchunked\r\n"), 400),
    ("DEL in a value", get(b"X: \x7f\r\n"), 400),
    ("blank before the colon", post(b"Content-Length : 29\r\n", BODY), 400),
    ("tab before the colon", post(b"Content-Length\t: 29\r\n", BODY), 400),
    ("no colon", get(b"Content-Length 29\r\n"), 400),
    ("invalid name", get(b"Bad Name: x\r\n"), 400),
    ("name beyond ASCII", get("N\u00e4me: x\r\n".encode()), 400),
    ("large header", get(b"X: " + b"x" * 20000 + b"\r\n"), 431),
    ("large header without end", b"GET / HTTP/1.1\r\nX: " + b"x" * 70000, 431),
    ("many headers", get(b"X: y\r\n" * 200), 431),
    # the request line
    ("two empty lines first", b"\r\n\r\n" + get(), 400),
    ("no version", b"GET /health\r\n\r\n", 400),
    ("two blanks", b"GET  /health HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    ("blank at the end", b"GET /health HTTP/1.1 \r\nHost: x\r\n\r\n", 400),
    ("tab", b"GET\t/health HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    ("blank first", b" GET /health HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    ("other protocol", b"GET /health FTP/1.1\r\nHost: x\r\n\r\n", 400),
    ("HTTP/1.10", get(version=b"1.10"), 400),
    ("HTTP/1.7", get(version=b"1.7"), 505),
    ("HTTP/2.0", get(version=b"2.0"), 505),
    ("HTTP/2's preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 50, 400),
    ("method beyond ASCII", b"G\xc3\x89T /health HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    ("NUL in the path", get(path=b"/hea\0lth"), 400),
    ("%00 in the path", get(path=b"/health%00"), 400),
    ("%00 and more", get(path=b"/health%00x"), 400),
    ("%0d%0a in the path", get(path=b"/v1/models/%0d%0aX:y"), 400),
    ("invalid percent code", get(path=b"/%zz"), 400),
    ("cut percent code", get(path=b"/%4"), 400),
    ("fragment", get(path=b"/health#x"), 400),
    ("path beyond ASCII", get(path=b"/\xff\xfe"), 400),
    ("absolute URL", get(path=b"http://evil.example/health"), 400),
    ("authority", b"CONNECT evil.example:1 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    ("* for GET", get(path=b"*"), 400),
    ("300 query arguments", get(path=b"/health?" + b"a=1&" * 300), 414),
    ("long path", get(path=b"/" + b"a" * 9000), 414),
    ("long query without end", b"GET /?" + b"a" * 70000, 414),
    # Host
    ("no Host", get(host=b""), 400),
    ("two Hosts", get(b"Host: localhost\r\n"), 400),
    ("another Host", get(b"host: evil.example\r\n"), 400),
    ("Host with a path", get(host=b"Host: a/b\r\n"), 400),
    ("Host with a comma", get(host=b"Host: a,b\r\n"), 400),
    ("Host with a user", get(host=b"Host: a@b\r\n"), 400),
    # where the body ends
    ("two lengths", post(CL + CL, BODY), 400),
    ("two different lengths", post(CL + b"content-length: 3\r\n", BODY), 400),
    ("list of lengths", post(b"Content-Length: 29, 29\r\n", BODY), 400),
    ("negative length", post(b"Content-Length: -1\r\n", BODY), 400),
    ("signed length", post(b"Content-Length: +29\r\n", BODY), 400),
    ("hexadecimal length", post(b"Content-Length: 0x1d\r\n", BODY), 400),
    ("length with junk", post(b"Content-Length: 29abc\r\n", BODY), 400),
    ("length of two words", post(b"Content-Length: 2 9\r\n", BODY), 400),
    ("empty length", post(b"Content-Length:\r\n", BODY), 400),
    ("length of 2^64+29", post(b"Content-Length: 18446744073709551645\r\n", BODY), 413),
    ("length of 10 GB", post(b"Content-Length: 10000000000\r\n", BODY), 413),
    ("length and chunked", post(CL + b"Transfer-Encoding: chunked\r\n", CHUNKS), 400),
    ("chunked and length", post(b"Transfer-Encoding: chunked\r\n" + CL, CHUNKS), 400),
    ("unknown coding and length", post(b"Transfer-Encoding: xchunked\r\n" + CL, BODY), 400),
    ("two codings", post(b"Transfer-Encoding: chunked\r\n" * 2, CHUNKS), 400),
    ("chunked in HTTP/1.0", post(b"Transfer-Encoding: chunked\r\n", CHUNKS, b"1.0"), 400),
    *[("coding " + c.decode(), post(b"Transfer-Encoding: " + c + b"\r\n", CHUNKS), 501)
      for c in (b"xchunked", b"gzip", b"identity", b"gzip, chunked", b"chunked, gzip",
                b"chunked, chunked", b'"chunked"', b"chunked;q=1", b"chunked,", b"")],
    # chunks
    ("no size", chunked(b"\r\n" + BODY + b"\r\n0\r\n\r\n"), 400),
    ("size zz", chunked(b"zz\r\n" + BODY + b"\r\n0\r\n\r\n"), 400),
    ("negative size", chunked(b"-1\r\n" + BODY + b"\r\n0\r\n\r\n"), 400),
    ("size 0x1d", chunked(b"0x1d\r\n" + BODY + b"\r\n0\r\n\r\n"), 400),
    ("size 1d_", chunked(b"1d_\r\n" + BODY + b"\r\n0\r\n\r\n"), 400),
    ("size of 2^64", chunked(b"1000000000000001d\r\n" + BODY + b"\r\n0\r\n\r\n"), 400),
    ("size with many zeros", chunked(b"0" * 30 + CHUNKS), 400),
    ("blank before the size", chunked(b" " + CHUNKS), 400),
    ("blank after the size", chunked(b"1d \r\n" + BODY + b"\r\n0\r\n\r\n"), 400),
    ("size ends with LF", chunked(b"1d\n" + BODY + b"\r\n0\r\n\r\n"), 400),
    ("size ends with CR", chunked(b"1d\r" + BODY + b"\r\n0\r\n\r\n"), 400),
    ("LF in an extension", chunked(b"1d;a\nb\r\n" + BODY + b"\r\n0\r\n\r\n"), 400),
    ("NUL in an extension", chunked(b"1d;a\0\r\n" + BODY + b"\r\n0\r\n\r\n"), 400),
    ("long extension", chunked(b"1d;a=" + b"x" * 300 + b"\r\n" + BODY + b"\r\n0\r\n\r\n"), 400),
    ("longer extension", chunked(b"1d;a=" + b"x" * 65536 + b"\r\n" + BODY + b"\r\n0\r\n\r\n"), 400),
    ("size too large", chunked(b"ffffff\r\n" + b"x" * 1100000), 413),
    ("size too small", chunked(b"5\r\n" + BODY + b"\r\n0\r\n\r\n"), 400),
    ("chunk ends with LF", chunked(b"1d\r\n" + BODY + b"\n0\r\n\r\n"), 400),
    ("chunk ends with XX", chunked(b"1d\r\n" + BODY + b"xx0\r\n\r\n"), 400),
    ("last size ends with LF", chunked(CHUNK + b"0;\n\r\n"), 400),
    ("trailer ends with LF", chunked(CHUNK + b"0\r\n\n"), 400),
    ("trailer without a colon", chunked(CHUNK + b"0\r\n" + NEXT), 400),
    ("folded trailer", chunked(CHUNK + b"0\r\nX: a\r\n b\r\n\r\n"), 400),
    ("large trailers", chunked(CHUNK + b"0\r\nX: " + b"x" * 20000 + b"\r\n\r\n"), 431),
    # refused before the body was read
    ("large body without key", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
     b"Content-Length: 900000\r\n\r\n" + BODY, 401),
    ("large body for nothing", b"POST /nothing HTTP/1.1\r\n" + NAMES +
     b"Content-Length: 900000\r\n\r\n" + BODY, 404),
]

# Understood, and the connection stays open for the next request.
TAKEN = [
    ("length", post(CL, BODY), [200]),
    ("length with zeros", post(b"Content-Length: 0029\r\n", BODY), [200]),
    ("length between blanks", post(b"Content-Length: \t 29 \t\r\n", BODY), [200]),
    ("chunks", chunked(CHUNKS), [200]),
    ("CHUNKED", post(b"Transfer-Encoding:\tCHUNKED \r\n", CHUNKS), [200]),
    ("extensions and trailers", chunked(b'1d;a=b;c="d e"\r\n' + BODY + b"\r\n0;x\r\nX: y\r\n"
                                        b"Content-Length: 5\r\n\r\n"), [200]),
    ("no value", get(b"X:\r\n"), [200]),
    ("one empty line first", b"\r\n" + get(), [200]),
    ("query", get(path=b"/health?a=1&b=%00"), [200]),
    ("percent code", get(path=b"/%68ealth"), [200]),
    ("any method", b"FOO /health HTTP/1.1\r\nHost: localhost\r\n\r\n", [405]),
    ("OPTIONS *", b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", [204]),
    ("body of GET", get(b"Content-Length: 5\r\n") + b"hello", [200]),
    ("wrong body", post(b"Content-Length: 2\r\n", b"{}"), [400]),
    ("100 Continue unneeded", post(b"Expect: 100-continue\r\n" + CL, BODY), [200]),
    ("pipeline", get() + post(CL, BODY) + get(path=b"/nothing"), [200, 200, 401]),
]
# Understood, and the connection closes.
LAST = [
    ("HTTP/1.0", get(version=b"1.0"), [200]),
    ("HTTP/1.0 without Host", get(version=b"1.0", host=b""), [200]),
    ("close", get(b"Connection: keep-alive, Close\r\n"), [200]),
]


def ask(data, piece):
    """All that comes until the server closes."""
    s = socket.create_connection(("127.0.0.1", PORT), timeout=20)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    came = b""
    try:
        for at in range(0, len(data), piece):
            s.sendall(data[at:at + piece])
        while got := s.recv(1 << 16):
            came += got
    except ConnectionError:
        pass  # it closed before it had read all
    s.close()
    return came


def answers(came):
    """[(status, headers, body)]"""
    out = []
    while came:
        head, _, came = came.partition(b"\r\n\r\n")
        status = int(re.match(rb"HTTP/1\.1 (\d+) ", head)[1])
        if status == 100:
            continue
        length = re.search(rb"\r\nContent-Length: (\d+)", head)
        n = int(length[1]) if length else 0
        out.append((status, head.lower(), came[:n]))
        came = came[n:]
    return out


def main():
    bad = []
    end = get(b"Connection: close\r\n", path=b"/ready")
    for pieces in (1 << 20, 7, 1):
        for name, data, status in REFUSED:
            if len(data) > 30000 and pieces < 100:
                continue
            got = answers(ask(data + NEXT, pieces))
            if [g[0] for g in got] != [status]:
                bad.append(f"{name}, by {pieces}: {[g[0] for g in got]}, not {status} alone")
            elif b"\r\nconnection: close" not in got[0][1] or "error" not in json.loads(got[0][2]):
                bad.append(f"{name}: {got[0]}")
        for name, data, statuses in TAKEN:
            got = [g[0] for g in answers(ask(data + end, pieces))]
            if got != [*statuses, 200]:
                bad.append(f"{name}, by {pieces}: {got}, not {statuses}, and the next one's 200")
        for name, data, statuses in LAST:
            got = [g[0] for g in answers(ask(data + NEXT, pieces))]
            if got != statuses:
                bad.append(f"{name}, by {pieces}: {got}, not {statuses} alone")
    # the body is invited if it is wanted, and only then
    for headers, first in ((CL, b"HTTP/1.1 100 "),
                           (b"Content-Length: 9000000\r\n", b"HTTP/1.1 413 ")):
        s = socket.create_connection(("127.0.0.1", PORT), timeout=20)
        s.sendall(post(b"Expect: 100-continue\r\n" + headers))
        came = s.recv(1 << 16)
        if not came.startswith(first):
            bad.append(f"100-continue: {came}")
        s.close()
    # a client that closes its own side, as nc -N does, gets its answer
    tokens = b'{"prompt":[1],"max_tokens":60,"ignore_eos":true'
    for version, stream in ((b"1.1", b"false"), (b"1.1", b"true"), (b"1.0", b"false")):
        body = tokens + b',"stream":' + stream + b"}"
        s = socket.create_connection(("127.0.0.1", PORT), timeout=20)
        s.sendall(post(b"Content-Length: %d\r\n" % len(body), body, version))
        s.shutdown(socket.SHUT_WR)
        came = b"".join(iter(lambda s=s: s.recv(1 << 16), b""))
        if came.count(b" 200 OK\r\n") != 1 or b'"finish_reason":"length"' not in came:
            bad.append(f"half-closed, HTTP/{version}, stream {stream}: {came}")
        s.close()
    print(*bad, sep="\n", end="\n" if bad else "")
    print(f"{len(REFUSED)} refused, {len(TAKEN) + len(LAST)} taken, {len(bad)} wrong")
    sys.exit(bool(bad))


if __name__ == "__main__":
    PORT = int(sys.argv[1])
    if sys.argv[2:3] == ["--seeds"]:  # for tests/fuzz/corpus/http
        for i, case in enumerate(REFUSED + TAKEN + LAST):
            if len(case[1]) < 1000:
                with open(f"{sys.argv[3]}/{i:03}", "wb") as f:
                    f.write(case[1])
        sys.exit(0)
    main()
