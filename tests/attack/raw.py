# SPDX-License-Identifier: Apache-2.0
"""Raw HTTP: requests whose heads, lengths and chunks are bent, sent whole or in pieces.

Each case hides a request for /version in its body. A strict reader of RFC 9112, below, says which
requests a stream contains. The server may refuse more than it (and must close then), but what it
answers must be among them: anything else is a smuggled request.
"""

import re

from target import KEY, Finding, Server, in_threads, read_all, scripted_model

HIDDEN = f"GET /version HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: {KEY}\r\n\r\n".encode()
TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+\Z")
LINE = re.compile(rb"(?:[A-Z]+ /[!-\"$-~]*|OPTIONS \*) HTTP/1\.([01])\Z")


def strict_body(stream, fields, minor):
    """Bytes after the head that are its body; None: more are needed; -1: the head is invalid."""
    lengths = [v for n, v in fields if n == b"content-length"]
    codings = [v for n, v in fields if n == b"transfer-encoding"]
    if len(lengths) + len(codings) > 1 or (codings and minor == b"0"):
        return -1
    if lengths:
        if not re.match(rb"\d{1,15}\Z", lengths[0]):
            return -1
        return int(lengths[0]) if int(lengths[0]) <= len(stream) else None
    if not codings:
        return 0
    if codings[0].lower() != b"chunked":
        return -1
    at = 0
    while True:
        found = re.match(rb"([0-9A-Fa-f]{1,8})(;[\t -~]*)?\r\n", stream[at:])
        if not found:
            return -1
        size, at = int(found[1], 16), at + found.end()
        if size == 0:
            break
        if stream[at + size : at + size + 2] != b"\r\n":
            return -1 if len(stream) >= at + size + 2 else None
        at += size + 2
    found = re.match(rb"(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t -~\x80-\xff]*\r\n)*\r\n", stream[at:])
    return at + found.end() if found else -1


def strict_requests(stream):
    """Request lines that a strict reader finds, up to the first error."""
    lines = []
    while stream:
        stream = stream[2:] if stream[:2] == b"\r\n" else stream
        head, end, rest = stream.partition(b"\r\n\r\n")
        if not end or re.search(rb"\r(?!\n)|(?<!\r)\n|\0", head):
            break
        first, *others = head.split(b"\r\n")
        found = LINE.match(first)
        if not found:
            break
        fields = []
        for line in others:
            name, colon, value = line.partition(b":")
            if not colon or not TOKEN.match(name) or re.search(rb"[\0-\x08\n-\x1f\x7f]", value):
                return lines
            fields.append((name.lower(), value.strip(b" \t")))
        body = strict_body(rest, fields, found[1])
        if body == -1:
            break
        lines.append(first)
        if body is None:
            break
        stream = rest[body:]
    return lines


def bend(rnd, data):
    """Small changes of bytes, where they hurt: around line ends and colons."""
    data = bytearray(data)
    for _ in range(rnd.choice([0, 0, 1, 1, 1, 2, 4])):
        marks = [i for i, b in enumerate(data) if b in b"\r\n:; \t"] or [0]
        at = rnd.choice(marks) + rnd.randrange(-1, 2)
        at = rnd.randrange(len(data)) if rnd.random() < 0.2 else at
        at = max(0, min(at, len(data) - 1))
        kind = rnd.randrange(4)
        odd = rnd.choice(
            [
                b"\r",
                b"\n",
                b"\0",
                b" ",
                b"\t",
                b":",
                b"\x0b",
                b"\xff",
                b"\r\n",
                b"\r\n ",
                b",",
                b";",
                b"\"",
                b"+",
                b"\x7f",
                b"a",
                b"0",
            ]
        )
        if kind == 0:
            data[at : at + 1] = odd
        elif kind == 1:
            data[at:at] = odd
        elif kind == 2:
            del data[at]
        else:
            data[at:at] = data[max(0, at - rnd.randrange(40)) : at]
    return bytes(data)


def lengths(rnd, body):
    n = len(body)
    length = b"Content-Length: %d\r\n" % n
    chunked = b"Transfer-Encoding: chunked\r\n"
    return rnd.choice(
        [
            [length],
            [length],
            [chunked],
            [chunked],
            [length, chunked],
            [chunked, length],
            [length, length],
            [length, b"content-length: 0\r\n"],
            [b"Content-Length: +%d\r\n" % n],
            [b"Content-Length:\r\n %d\r\n" % n],
            [b"Content-Length : %d\r\n" % n],
            [b"Content-Length: %d, %d\r\n" % (n, n)],
            [b"Content-Length: 0%d\r\n" % n],
            [b"Content-Length: %d\0\r\n" % n],
            [b"Foo: x\r" + length],
            [b": x\r\n", length],
            [
                b"Transfer-Encoding: "
                + rnd.choice(
                    [
                        b"xchunked",
                        b"gzip, chunked",
                        b"chunked, gzip",
                        b"\x0bchunked",
                        b"chunked\0",
                        b"CHUNKED",
                        b"identity",
                        b"\"chunked\"",
                    ]
                )
                + b"\r\n"
            ],
            [b"Transfer-Encoding:\r\n chunked\r\n"],
            [b"Transfer-Encoding : chunked\r\n", length],
            [b"X-Content-Length: %d\r\n" % n, length],
        ]
    )


def chunk(rnd, body):
    out, at = b"", 0
    while at < len(body):
        n = min(rnd.choice([1, 7, 40, 400]), len(body) - at)
        size = (
            rnd.choice([b"%x", b"%X", b"0%x", b"%x;a=b", b"%x ", b"0x%x", b"+%x", b"%x\n"]) % n
            if rnd.random() < 0.1
            else b"%x" % n
        )
        out += size + b"\r\n" + body[at : at + n] + b"\r\n"
        at += n
    return out + rnd.choice(
        [b"0\r\n\r\n"] * 6
        + [b"0\r\nX: y\r\n\r\n", b"0\r\n\r", b"00\r\n\r\n", b"0\r\nContent-Length: 3\r\n\r\n"]
    )


def one_case(rnd, hidden=HIDDEN):
    body = b'{"prompt":"' + b"a" * rnd.choice([0, 3, 90]) + b'"}' + hidden * rnd.randrange(3)
    if rnd.random() < 0.3:
        body = hidden + body
    fields = lengths(rnd, body)
    host = rnd.choice(
        [b"Host: localhost\r\n"] * 8 + [b"", b"Host: a\r\nHost: b\r\n", b"Host: a/b\r\n"]
    )
    other = rnd.choice(
        [
            b"",
            b"Connection: keep-alive\r\n",
            b"X: " + b"y" * 300 + b"\r\n",
            b"Expect: 100-continue\r\n",
            b"A:\r\nB: \t c \t\r\n",
        ]
    )
    head = b"POST /tokenize HTTP/1.%d\r\n" % rnd.choice([1, 1, 1, 1, 0]) + host
    head += b"X-Api-Key: %s\r\n" % KEY.encode() + other + b"".join(fields) + b"\r\n"
    coded = any(b"hunked" in f or b"HUNKED" in f for f in fields)
    data = bend(rnd, head) if rnd.random() < 0.4 else head
    data += (
        bend(rnd, chunk(rnd, body))
        if coded and rnd.random() < 0.5
        else chunk(rnd, body) if coded else body
    )
    return data


def responses(data):
    """The final responses in the server's bytes; Finding if they are not well formed."""
    found = []
    while data:
        head, end, rest = data.partition(b"\r\n\r\n")
        status = re.match(rb"HTTP/1\.1 (\d{3}) [ -~]+\r\n", head + end)
        if not end or not status:
            raise Finding(f"the server's answer is not HTTP: {data[:200]!r}")
        if status[1] == b"100":
            data = rest
            continue
        length = re.search(rb"\r\nContent-Length: (\d+)(?=\r\n|\Z)", head)
        if not length or len(rest) < int(length[1]):
            raise Finding(f"an answer is cut: {data[:200]!r}")
        found.append((int(status[1]), rest[: int(length[1])], b"\r\nConnection: close" in head))
        data = rest[int(length[1]) :]
    return found


def one(rnd, server, clock):
    data = one_case(rnd)
    s = server.connect(timeout=20)
    try:
        if rnd.random() < 0.3:
            for at in range(0, len(data), 37):
                s.sendall(data[at : at + 37])
        else:
            s.sendall(data)
        s.shutdown(1)
    except OSError:
        pass
    answer, closed = read_all(s)
    s.close()
    server.alive()
    found = responses(answer)
    hidden = sum(status == 200 and b'"version"' in body for status, body, _ in found)
    allowed = sum(line.startswith(b"GET /version ") for line in strict_requests(data))
    if not closed:
        raise Finding(f"the connection stays open after {data!r}")
    if hidden > allowed:
        raise Finding(f"a hidden request is answered: {data!r}")
    if any(close for _, _, close in found[:-1]) or any(st == 500 for st, _, _ in found):
        raise Finding(f"answers {[st for st, _, _ in found]} to {data!r}")
    clock.count(
        "refused"
        if found and found[-1][0] >= 400
        else "without an answer" if not found else "accepted"
    )


def work(rnd, server, clock, findings):
    while not findings and clock.goes_on("cases"):
        try:
            one(rnd, server, clock)
        except Finding as e:
            findings.append(e)
        except OSError as e:
            findings.append(Finding(repr(e)))


def attack(program, rnd, clock, limits):
    scripted_model("raw-model")
    flags = ["--idle-timeout", "10", "--threads", "2"]
    with Server(program, "-m", "raw-model", *flags) as server:
        in_threads(4, rnd, work, server, clock)
    del limits
