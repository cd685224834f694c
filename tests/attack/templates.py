# SPDX-License-Identifier: Apache-2.0
"""Chat templates that loop, grow, recurse and reach out: each ends with text or an error, in
bounded time and memory, and reads no file."""

import resource
import subprocess

from target import Finding, is_sanitized, scripted_model

GROW = "{% set ns = namespace(s=@) %}{% for i in range(#) %}{% set ns.s = $ %}{% endfor %}"
TEMPLATES = {
    "a long range": "{% for i in range(10**9) %}x{% endfor %}",
    "nested ranges": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}"
    "{% endfor %}",
    "a repeated string": "{{ 'a' * 10**9 }}",
    "a repeated list": "{% set x = [1] * 10**9 %}{{ x|length }}",
    "a string that doubles": GROW.replace("@", "'a'")
    .replace("#", "100")
    .replace("$", "ns.s + ns.s"),
    "a list that doubles": GROW.replace("@", "[1]").replace("#", "100").replace("$", "ns.s + ns.s"),
    "a list of itself twice": GROW.replace("@", "[1]")
    .replace("#", "90")
    .replace("$", "[ns.s, ns.s]")
    + "{{ ns.s }}{{ ns.s|tojson }}",
    "a cycle": "{% set ns = namespace() %}{% set ns.a = [ns] %}{{ ns.a }}{{ [ns.a]|tojson }}",
    "a recursive macro": "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    "a macro tree": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "powers": "{{ 2**(10**9) }} {{ 9**9**9 }} {{ 2.0**1e300 }}",
    "replacements": "{% set a = 'a' * 60000 %}{% for i in range(3000) %}"
    "{% set b = a.replace('a', 'bb') %}{% endfor %}",
    "widths": "{{ '%1000000000d' % 1 }}{{ 'a'|center(1000000000) }}{{ 'a'.ljust(1000000000) }}",
    "indents": "{{ ('a\n' * 10000)|indent(100000) }}{{ [[1]]|tojson(indent=1000000000) }}",
    "a long join": "{{ (['a'] * 50000)|join('b' * 10000) }}",
    "sorts": "{% for k in range(3000) %}{% set x = range(99999)|list|sort %}{% endfor %}",
    "scans": "{% set a = 'a' * 30000000 %}{% for i in range(9999) %}{% set x = a.count('ab') %}"
    "{% endfor %}",
    "slices": "{% set a = 'é' * 6000000 %}{% for i in range(99999) %}{% set x = a[i:] %}"
    "{% endfor %}",
    "much output": "{% for i in range(99999) %}{{ 'a' * 900 }}{% endfor %}",
    "deep parentheses": "{{ " + "(" * 100000 + "1" + ")" * 100000 + " }}",
    "deep ifs": "{% if 1 %}" * 50000 + "x" + "{% endif %}" * 50000,
    "many nots": "{{ " + "not " * 100000 + "1 }}",
    "many filters": "{{ 1" + "|string" * 60000 + " }}",
    "many indexes": "{{ messages" + "[0]" * 100000 + " }}",
    "Python's insides": "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    "{{ cycler.__init__.__globals__ }}",
    "a file": "{% include '/etc/passwd' %}",
    "a module": "{% import '/etc/passwd' as x %}{{ x }}",
    "a base": "{% extends '/etc/passwd' %}",
    "a long date": "{{ strftime_now('%Y' * 100000)|length }}",
    "a long error": "{{ raise_exception('x' * 60000000) }}",
    "small divisors": "{{ (-9223372036854775807-1)//-1 }} {{ (-9223372036854775807-1)%-1 }}"
    " {{ 1//0 }}",
    "long steps": "{{ range(0, 9223372036854775807, 9223372036854775807)|list }}"
    "{{ [1,2,3][9223372036854775807:-9223372036854775807:-1] }}",
}
SECONDS, MIB = 10, 600


def attack(program, rnd, clock, limits):
    scripted_model("template-model")
    sanitized = is_sanitized(program)
    names = list(TEMPLATES)
    rnd.shuffle(names)
    for name in names:
        if clock.left() <= 0:
            break
        with open("hostile.jinja", "w", encoding="utf-8") as f:
            f.write(TEMPLATES[name])
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        try:
            done = subprocess.run(
                [
                    program,
                    "generate",
                    "-m",
                    "template-model",
                    "--chat-template",
                    "hostile.jinja",
                    "-p",
                    "hi",
                    "-n",
                    "1",
                    "--threads",
                    "1",
                    "-q",
                ],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                timeout=SECONDS * (10 if sanitized else 1),
            )
        except subprocess.TimeoutExpired:
            raise Finding(f"template with {name}: more than {SECONDS} s") from None
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        if done.returncode not in (0, 1, 2) or b"Sanitizer" in done.stderr:
            raise Finding(
                f"template with {name}: exit code {done.returncode}: " f"{done.stderr[-2000:]!r}"
            )
        if b"root:" in done.stdout + done.stderr:
            raise Finding(f"template with {name}: a file was read")
        if not sanitized and peak > before and peak > MIB << 10:
            raise Finding(f"template with {name}: {peak >> 10} MiB")
        clock.count("templates")
    del limits
