# SPDX-License-Identifier: Apache-2.0
"""The page in headless Chromium: chats, versions, settings, files, errors, storage, hostile
answers, keyboard, accessibility (axe-core), sizes; no error on the console, no request to another
origin.

    page.py --page FILE [--axe FILE] [--url URL [--key KEY] [--scripted]] [--screenshots FOLDER]

Without --url it uses a fake server, whose answers it knows, with the page FILE; with it, it asks
two questions through the page of a real server. KEY is that server's API key; --scripted says that
its model is the one of page.sh. Exit code 77: skipped, there is no Chromium.
"""
import argparse
import base64
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.parse

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
from browser import Browser, fail, find_browser  # noqa: E402

FAKE = os.path.join(HERE, "..", "support", "fake_server.py")
LAST = "[...document.querySelectorAll('.answer')].at(-1)"
BODY = LAST + ".querySelector(':scope > .body')"


def press(b, element, label):
    """Presses the button of an element by its label or text."""
    b.js(f"[...{element}.querySelectorAll('button')].find(e => (e.getAttribute('aria-label') ?? "
         f"e.textContent) === {json.dumps(label)}).click()")


def load(b, url):
    b.call("Page.navigate", url=url)
    b.wait("document.readyState === 'complete' && typeof $ === 'function'")


def test_key(b, key):
    """Without the key the page says so; with it, it connects; only this tab keeps the key."""
    b.wait("$('state').textContent === 'API key needed'")
    b.type("key", key)
    b.wait("$('state').textContent === 'connected'")
    b.check("Object.values(sessionStorage).join() !== ''")
    b.check(f"!Object.values(localStorage).join().includes({json.dumps(key)})")


def test_chat(b, log):
    b.check("$('model').value === 'fake-model'")
    b.say("Hello, wörld 🌍")
    b.check(LAST + ".innerText.includes('You said: Hello, wörld 🌍')")
    b.check("/5 tokens · [0-9.]+ tokens.s · .* to the first · 0 of 3 prompt tokens cached/"
            ".test(" + LAST + ".innerText)")
    b.check("/^[0-9.]+ m?s$/.test($('ttft').textContent)")
    b.check("$('list').children.length === 1")
    # Shift+Enter adds a line end and does not send
    b.type("input", "two")
    b.key("Enter", 13, "\r", modifiers=8)
    b.call("Input.insertText", text="lines")
    b.check("$('input').value === 'two\\nlines' && !running")
    # with a touch keyboard Enter does, too
    b.call("Emulation.setTouchEmulationEnabled", enabled=True)
    b.call("Emulation.setEmulatedMedia", features=[{"name": "hover", "value": "none"},
                                                   {"name": "pointer", "value": "coarse"}])
    b.enter()
    b.check("$('input').value === 'two\\nlines\\n' && !running")
    b.call("Emulation.setTouchEmulationEnabled", enabled=False)
    b.call("Emulation.setEmulatedMedia", features=[])
    b.type("input", "")
    b.enter()  # nothing to send
    b.check("!running && document.querySelectorAll('.answer').length === 1")
    b.type("system", "Be brief.")
    b.type("temperature", "0.5")
    b.type("max-tokens", "7")
    b.say("And now?")
    body = log()[-1]
    roles = [m["role"] for m in body["messages"]]
    if (roles != ["system", "user", "assistant", "user"] or body["temperature"] != 0.5 or
            body["max_tokens"] != 7 or body["stream_options"] != {"include_usage": True} or
            body["model"] != "fake-model"):
        fail(f"the request: {body}")
    for field in "system", "temperature", "max-tokens":
        b.type(field, "")


def test_markdown(b):
    b.say("markdown")
    for part in ("h2", "strong", "a[href='https://example.org/a'][rel='noopener noreferrer']",
                 "p math menclose msup", "td.right", "ol ul li", "math[display=block] mfrac",
                 ".code .hljs-keyword", ".code .hljs-comment"):
        b.check(f"{BODY}.querySelector({json.dumps(part)})")
    b.check(BODY + ".innerText.includes('$5 or $6')")
    b.check("/☑ done\\n☐ open/.test(" + BODY + ".innerText)")
    b.check(BODY + ".querySelector('.code-bar span').textContent === 'python'")
    b.check(BODY + ".querySelector('.code code').textContent.endsWith('# a comment\\n')")
    b.js("navigator.clipboard.writeText = async text => { window.copied = text; }")
    press(b, BODY, "Copy code")
    b.check("copied.startsWith('def half')")
    # where the destination of a link ends, and what is none
    for text, link in (("[a](http://b.c/d_(e)_f)", "http://b.c/d_(e)_f"),
                       ("[a](http://b.c/\\(d)", "http://b.c/(d"),
                       ("[a](http://b.c/)e)", "http://b.c/"),
                       ("[a](<http://b.c/(d>)", "http://b.c/(d"),
                       ("[a](<http://b.c/\\<d\\>>)", "http://b.c/%3Cd%3E"),
                       ("[a](<http://b.c/<d>)", None), ("[a](<http://b.c/d)", None),
                       ("[a](" + "(" * 32 + ")" * 32 + ")", "(" * 32 + ")" * 32),
                       ("[a](\\(" + "(" * 32 + ")" * 32 + ")", "(" * 33 + ")" * 32),
                       ("[a](x" + "(" * 33 + ")" * 33 + ")", None), ("[a]()", ""),
                       ("[a](b (title))", "b"), ("[a](b (t\\(itle))", "b"),
                       ("[a](b ((title)))", None)):
        b.js(f"(window.made = make('div'), fill(made, {json.dumps(text)}))")
        b.check("(made.querySelector('a')?.innerText === 'a' ? made.querySelector('a')"
                f".getAttribute('href') : null) === {json.dumps(link)}")
    # what did not change stays the same elements, so that a selection survives the next words
    b.js("(window.first = " + BODY + ".firstElementChild, chat.messages.at(-1).content += '.', "
         "fill(" + BODY + ", chat.messages.at(-1).content))")
    b.check("first.isConnected && first === " + BODY + ".firstElementChild")


def test_text(b):
    """A model's answer is shown as text and known elements, never as its HTML."""
    b.say("code")
    b.check(BODY + ".querySelector('pre code').textContent === "
            "\"int main(void) { return '<b>&' != 0; }\\n\"")
    b.check(BODY + ".querySelector('p code').textContent === '<i>'")
    b.check("$('log').querySelectorAll('img, i, b, script').length === 0")
    b.check(BODY + ".innerText.includes('<img src=x onerror=alert(1)>')")
    b.say("think")
    b.check(LAST + ".querySelector('details').open === false")
    b.js(LAST + ".querySelector('summary').click()")
    b.wait(LAST + ".querySelector('details').textContent.includes('Let me think of it.')")
    b.check(BODY + ".innerText.trim() === 'It is done.'")
    b.js("(chat.messages.at(-1).content = '```\\nnot closed', showChat())")
    b.check(BODY + ".querySelector('pre').textContent.trim() === 'not closed'")


FORBIDDEN = ("script, style, img, svg, iframe, form, object, embed, link, meta, base, input, "
             "[onclick], [onload], [onerror], [style]")


def test_hostile(b):
    """Nothing of an answer runs or is loaded, and none takes long to show."""
    b.say("hostile")
    b.check(f"!{BODY}.querySelector({json.dumps(FORBIDDEN)}) && window.hacked === undefined")
    b.check(f"[...{BODY}.querySelectorAll('a')].every(a => /^https?:/.test(a.href))")
    b.check(BODY + ".innerText.includes('<script>window.hacked = 1</script>')")
    b.check(BODY + ".querySelector('.code code').textContent.includes('</code></pre><script>')")
    b.check("getComputedStyle(document.body).display === 'grid'")
    b.say("flood")
    b.check(BODY + ".innerText.startsWith('Too long to be formatted.')")
    b.check(BODY + ".querySelector('pre').textContent.length === 64 * 9 * 1820")
    b.js("document.querySelector('#list li.on').querySelector('[aria-label^=Delete]').click()")
    b.js("$('notice').hidden = true")
    lines = ("'*a_ '", "'['", "'![a]('", "'\\\\('", "'`'", "'**a **a* '", "'http://a.b.'", "'|a'",
             "'> '", "'\\\\frac{'", "'~~a'", "'[a](<'", "'[a](b'", "'[a]()'",
             "'![a]()'", "'[a](()'", "'[a](\\\\)'", "'[a](b ('", "'[a](b \"'")
    for line in lines:
        for text in (f"{line}.repeat(19000).slice(0, 19900)",
                     f"({line}.repeat(40).slice(0, 500) + '\\n').repeat(200)",
                     f"'$$\\n' + {line}.repeat(900)", f"'```js\\n' + {line}.repeat(8000)"):
            show = (f"(() => {{ const t = performance.now(); fill(make('div'), {text}); "
                    "return performance.now() - t; })()")
            limit = 4000 * int(os.environ.get("TIMEOUT_FACTOR", 1))
            if all(b.js(show) > limit for _ in range(4)):  # once may be the machine's load
                fail(f"{text} takes more than {limit / 1000:.0f} s to show")
    if b.errors:
        fail(f"console: {b.errors}")
    # markup that passes markdown-it by a mistake of ours would still meet DOMPurify
    for html in ("<img src=x onerror=hacked=1>", "<math><mi><style><img src=x onerror=hacked=1>",
                 "<a href='javascript:hacked=1'>a</a>", "<svg><script>hacked=1</script></svg>",
                 "<p style='position:fixed' onclick=hacked=1>p</p>", "<form><input></form>"):
        b.check(f"!cleaned([{json.dumps(html)}]).querySelector({json.dumps(FORBIDDEN)}) && "
                f"!cleaned([{json.dumps(html)}]).querySelector('a[href]')")
    b.js("console.error = e => { window.said = e; }")
    b.js("markdown.renderer.rules.hr = () => '</div></div><div>'")
    b.check("(() => { const e = make('div'); fill(e, '---\\n'); return e.innerText.includes("
            "'cannot be formatted'); })() && said.message === 'the blocks are not balanced'")
    b.js("delete markdown.renderer.rules.hr")
    b.take_errors("Content Security Policy")


PIECES = ("*", "**", "_", "`", "```", "~~~", "\n", "\n\n", "- ", "1. ", "> ", "# ", "|", "|--|",
          "$", "$$", "\\(", "\\)", "\\[", "\\]", "[", "](", "http://a.b ", ")", "![", "<b>",
          "</div>", "<div>", "<script>", "</script>", "&lt;", "&", "\\frac{a}{b}", "x^2", "    ",
          "\t", "word ",
          "\\begin{matrix}a&b\\\\c\\end{matrix}", "<!--", "-->", "\\", "{", "}", "python", "[x] ",
          "<math>", "\\text{<b>}", "\\href{javascript:1}{x}", "\\color{red}", "\\def\\a{\\a\\a}",
          "\\a", "\0", "\\boxed{", "\\rule{1em}{1em}", "\\includegraphics{x}", "=== ", "---\n")


def test_random(b):
    """Texts of random pieces: all can be formatted, and have no forbidden element."""
    rng = random.Random(1)
    texts = ["".join(rng.choices(PIECES, k=rng.randrange(3, 60))) for _ in range(1500)]
    wrong = b.js(f"{json.dumps(texts)}.filter(t => {{ const e = make('div'); fill(e, t); return "
                 f"!e.blocks || e.querySelector({json.dumps(FORBIDDEN)}); }})")
    if wrong:
        fail(f"{len(wrong)} random texts, the first: {wrong[0]!r}")


def test_ends(b, log, gone):
    """After a stopped, refused or broken answer the chat continues, also that answer."""
    for stop in "b.key('Escape', 27)", "b.js('$(\"stop\").click()')":
        b.type("input", "slow")
        b.enter()
        b.wait(LAST + ".innerText.includes('7 8 9')")
        b.check("$('send').hidden && !$('stop').hidden")
        b.wait("Number($('tps').textContent) > 1")
        exec(stop)
        b.wait("!running")
        b.check("!$('send').hidden && $('stop').hidden")
        b.check("/ · stopped$/.test(" + LAST + ".querySelector('.figures').textContent)")
    end = time.time() + 20
    while gone() < 2:
        if time.time() > end:
            fail("the server does not see that the answer was stopped")
        time.sleep(0.1)
    press(b, LAST, "Continue this answer")
    b.wait("!running && " + LAST + ".innerText.includes(' and on.')")
    b.check(BODY + ".innerText.startsWith('0 1 2')")
    body = log()[-1]
    if (body["messages"][-1]["role"] != "assistant" or not body["continue_final_message"] or
            body["add_generation_prompt"]):
        fail(f"the request: {body}")
    for said, why in (("fail", "the engine failed"), ("break", "The answer broke off."),
                      ("garbage", "JSON")):
        b.say(said)
        b.check(f"{LAST}.querySelector('[role=alert]').textContent.includes('{why}')")
    if b.errors:
        fail(f"console: {b.errors}")
    b.say("refuse")
    b.check(LAST + ".querySelector('[role=alert]').textContent === "
            "'HTTP 400: messages[0].content: is not wanted'")
    b.take_errors("400")
    b.say("long")
    b.check(LAST + ".innerText.includes('stopped at max tokens')")


def test_versions(b, log):
    """Answers and questions have versions; the ones that are not shown are kept, and not sent."""
    b.js("$('new').click()")
    b.say("one")
    press(b, LAST, "Regenerate")
    b.wait("!running")
    b.check(LAST + ".querySelector('.versions').textContent === '‹2/2›'")
    b.say("two")
    press(b, "document.querySelectorAll('.answer')[0]", "Previous version")
    b.check("document.querySelectorAll('article').length === 2")
    b.check(LAST + ".querySelector('.versions').textContent === '‹1/2›'")
    press(b, LAST, "Next version")
    b.check("document.querySelectorAll('article').length === 4")
    press(b, "document.querySelectorAll('.user')[0]", "Edit and send again")
    b.check("document.querySelector('.edit').value === 'one'")
    b.js("document.querySelector('.edit').value = 'uno'")
    press(b, "document.querySelector('.editing')", "Send")
    b.wait("!running && " + LAST + ".innerText.includes('You said: uno')")
    if [m["content"] for m in log()[-1]["messages"]] != ["uno"]:
        fail(f"the request: {log()[-1]}")
    b.check("document.querySelector('.user .versions').textContent === '‹2/2›'")
    press(b, LAST, "Edit answer")
    b.js("document.querySelector('.edit').value = 'I said this'")
    press(b, "document.querySelector('.editing')", "Keep as a new version")
    b.check(BODY + ".innerText.trim() === 'I said this'")
    press(b, "document.querySelector('.user')", "Previous version")
    b.check("document.querySelectorAll('article').length === 4")


def test_settings(b, log):
    """Each chat has settings of its own; new ones begin with the defaults."""
    b.js("$('new').click()")
    b.check("$('whose').textContent === 'of new chats' && $('as-default').hidden")
    b.js("document.querySelectorAll('aside details').forEach(e => { e.open = true; })")
    b.say("plain")
    more = {"top-p": "0.9", "top-k": "40", "min-p": "0.05", "repetition": "1.1", "seed": "7",
            "schema": '{"type": "object"}', "extra": '{"logprobs": true}'}
    for field, text in more.items():
        b.type(field, text)
    b.js("($('thinking').value = 'off', $('thinking').dispatchEvent(new Event('input')))")
    b.say("with settings")
    body = log()[-1]
    wanted = {"top_p": 0.9, "top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1, "seed": 7,
              "logprobs": True, "chat_template_kwargs": {"enable_thinking": False},
              "response_format": {"type": "json_schema",
                                  "json_schema": {"name": "answer", "strict": True,
                                                  "schema": {"type": "object"}}}}
    if {k: body.get(k) for k in wanted} != wanted:
        fail(f"the request: {body}")
    b.type("schema", "{")
    b.check("!$('schema-error').hidden && $('schema').getAttribute('aria-invalid') === 'true'")
    n = len(log())
    b.type("input", "not sent")
    b.enter()
    b.check("!running && $('notice').textContent.includes('no valid JSON')")
    if len(log()) != n:
        fail("a request with an invalid schema")
    b.type("schema", "")
    b.js("$('new').click()")
    b.check("$('top-k').value === '' && $('thinking').value === ''")
    b.js("$('list').children[0].firstElementChild.click()")
    b.check("$('top-k').value === '40' && $('whose').textContent === 'of this chat'")
    b.js("$('as-default').click()")
    b.js("$('new').click()")
    b.check("$('top-k').value === '40'")
    b.js("(defaults = {}, store('defaults', {}), showSettings())")


def test_long(b):
    """Of a long chat only what is near is formatted, and only once."""
    b.js("""(() => {
        const c = newChat("Long", {});
        const text = "## H\\n\\n*a* `b` $x^2$\\n\\n- c\\n\\n```c\\nd\\n```\\n\\n".repeat(8);
        for (let i = 0; i < 300; i++)
            addMessage(c, c.leaf, { role: i % 2 ? "assistant" : "user", content: text + i });
        chats.unshift(c);
        pick(c); })()""")
    b.check("document.querySelectorAll('article').length === 300")
    b.check("document.querySelectorAll('.answer .plain').length >= 140")
    b.check("!" + BODY + ".classList.contains('plain')")
    b.js("log.scrollTop = 0")
    b.wait("!document.querySelector('.answer > .body').classList.contains('plain')")
    b.js("(window.before = document.querySelectorAll('article')[299], showChat())")
    b.check("before.isConnected")
    b.say("one more")
    b.check("before.isConnected && document.querySelectorAll('article').length === 302")
    b.js("document.querySelector('#list li.on').querySelector('[aria-label^=Delete]').click()")


def test_context(b):
    b.js("$('new').click()")
    b.check("$('context').hidden")
    b.say("one two three")
    b.check("$('context-text').textContent === '8 of 4,096 tokens of context'")
    b.check("$('context-bar').value === 8 && $('context-bar').max === 4096")


def drop(b, name, content):
    b.js("(() => { const d = new DataTransfer(); d.items.add(new File([new Uint8Array("
         f"{list(content)})], {json.dumps(name)})); document.dispatchEvent(new DragEvent('drop', "
         "{ dataTransfer: d, bubbles: true, cancelable: true })); })()")


def test_files(b, log):
    """Text files go with the message; other files are refused."""
    b.js("$('new').click()")
    drop(b, "notes.txt", "wörld\n".encode())
    b.wait("$('files').children.length === 1")
    drop(b, "cat.png", b"\x89PNG\x00\xff")
    b.wait("$('notice').textContent.includes('cat.png is no text')")
    drop(b, "data.json", b'{"a": 1}')
    b.wait("$('files').children.length === 2")
    press(b, "$('files')", "Remove data.json")
    b.say("What is in it?")
    if log()[-1]["messages"][-1]["content"] != "notes.txt:\n```\nwörld\n```\n\nWhat is in it?":
        fail(f"the request: {log()[-1]}")
    b.check("$('files').hidden && document.querySelector('.user .file pre').textContent === "
            "'wörld\\n'")


def titles(b):
    return b.js("[...document.querySelectorAll('#list .open')].map(e => e.textContent)")


def test_list(b):
    """Chats are found, renamed, deleted, brought back, exported and imported."""
    n = len(titles(b))
    b.type("search", "WÖRLD 🌍")
    if titles(b) != ["Hello, wörld 🌍"]:
        fail(f"found: {titles(b)}")
    b.key("k", 75, modifiers=2)
    b.check("document.activeElement === $('search')")
    b.type("search", "no such text")
    b.check("!$('none').hidden")
    b.type("search", "")
    press(b, "$('list').children[0]", "Rename " + titles(b)[0])
    b.js("document.querySelector('#list input').value = 'Renamed'")
    b.enter()
    if titles(b)[0] != "Renamed":
        fail(f"titles: {titles(b)}")
    b.js("download = (name, type, text) => { window.saved = { name, text }; }")
    press(b, "$('list').children[0]", "Export Renamed")
    b.check("saved.name === 'Renamed.json' && JSON.parse(saved.text).chats.length === 1")
    press(b, "$('list').children[0]", "Delete Renamed")
    b.check(f"$('list').children.length === {n - 1} && $('hello')")
    press(b, "$('notice')", "Undo")
    b.check(f"$('list').children.length === {n} && $('notice').hidden && !$('hello')")
    press(b, "$('list').children[0]", "Delete Renamed")
    b.js("importFile(new File([saved.text], 'x.json'), false)")
    b.wait(f"$('list').children.length === {n}")
    if "Renamed" not in titles(b):
        fail(f"titles: {titles(b)}")
    drop(b, "again.json", b.js("saved.text").encode())  # the same again: nothing to do
    b.wait("$('notice').textContent.includes('Imported 1 chat')")
    b.check(f"$('list').children.length === {n} && $('files').hidden")
    b.js("importFile(new File(['{\"title\": 3}'], 'y.json'), false)")
    b.wait("$('notice').textContent.includes('y.json has no chats')")
    b.js("$('export').click()")
    b.check(f"JSON.parse(saved.text).chats.length === {n}")
    b.js("$('list').children[0].firstElementChild.click()")
    b.key("O", 79, modifiers=10)
    b.check("chat === null && document.activeElement === $('input')")


def test_storage(b, url):
    """A reload restores everything; what is no chat is ignored; older chats are taken over."""
    n = len(titles(b))
    load(b, url)
    b.wait("$('state').textContent === 'connected'")  # with the key from sessionStorage
    b.wait(f"$('list').children.length === {n}")
    b.js("[...document.querySelectorAll('#list .open')].find(e => "
         "e.textContent.startsWith('Hello')).click()")
    b.check("$('log').querySelectorAll('article').length > 15")
    b.js("localStorage.setItem('kvasir.chats', JSON.stringify([3, {title: 1}, {title: 'x', "
         "messages: [{}]}, {title: 'Old', messages: [{role: 'user', content: 'a'}, "
         "{role: 'assistant', content: 'b'}]}]))")
    b.js("inStore('readwrite', s => s.put({id: 'bad', title: 'Bad', messages: [{role: 'user', "
         "content: 'a', parent: 0}]}))")
    load(b, url)
    b.wait(f"$('list').children.length === {n + 1}")
    if "Old" not in titles(b) or "Bad" in titles(b):
        fail(f"titles: {titles(b)}")
    b.js("[...document.querySelectorAll('#list .open')].find(e => e.textContent === 'Old').click()")
    b.check(BODY + ".innerText.trim() === 'b'")
    # what another tab changes or deletes
    b.js("window.other = { id: 'other', title: 'Other', messages: [{role: 'user', "
         "content: 'a'}] }; window.tab = new BroadcastChannel('kvasir'); undefined")
    for use, length in ("put(other)", n + 2), ("delete('other')", n + 1):
        b.js(f"inStore('readwrite', s => s.{use}).then(() => tab.postMessage('other'))")
        b.wait(f"$('list').children.length === {length}")
    # an answer that comes while the tab is closed
    b.js("$('new').click()")
    b.type("input", "slow")
    b.enter()
    b.wait("running && running.pieces > 3")
    b.js("running.kept = -10000")
    b.wait("running.kept > 0")
    b.js("inStore('readonly', s => s.count())")
    load(b, url)
    b.wait(f"$('list').children.length === {n + 2}")
    b.js("$('list').children[0].firstElementChild.click()")
    b.check(BODY + ".innerText.startsWith('0 1 2')")
    press(b, LAST, "Continue this answer")
    b.wait("!running && " + LAST + ".innerText.includes(' and on.')")
    b.js("localStorage.setItem('kvasir.defaults', '{')")
    load(b, url)
    b.wait(f"$('list').children.length === {n + 2}")


def test_models(b):
    """Of several models one is chosen, and kept."""
    b.wait("$('state').textContent === 'connected'")
    b.js("showModels({data: [{id: 'fake-model', max_model_len: 4096}, {id: 'b', max_model_len: "
         "1024}]})")
    b.check("!$('model').disabled && $('model').options.length === 2 && contextLimit === 4096")
    b.js("($('model').value = 'b', $('model').dispatchEvent(new Event('change')), "
         "window.option = $('model').options[1])")
    b.js("showModels({data: [{id: 'fake-model'}, {id: 'b', max_model_len: 2048}]})")
    b.check("$('model').value === 'b' && contextLimit === 2048 && option.isConnected")
    b.check("localStorage.getItem('kvasir.model') === '\"b\"'")
    b.js("(localStorage.removeItem('kvasir.model'), showModels({data: [{id: 'fake-model', "
         "max_model_len: 4096}]}))")
    b.check("$('model').disabled && $('model').value === 'fake-model'")


def test_panel(b):
    b.wait("$('reuse').textContent === '95 % of requests reused the cache'")
    b.check("/^[0-9.]+ [KM]iB cached · 6[0-9.]+ KiB buffers$/.test($('used').textContent)")
    b.check("/^(under )?1 % of the budget of 1.0 GiB$/.test($('budget').textContent)")
    b.check("!$('tiers').hidden && $('stores').textContent.includes('3.0 MiB of 1.0 GiB')")
    for plot in "speed-plot", "cache-plot":
        b.wait(f"$('{plot}').querySelector('polyline').getAttribute('points').split(' ').length "
                "> 2")


def test_reach(b):
    """Every control has a name and is reached by Tab."""
    nodes = b.call("Accessibility.getFullAXTree")["nodes"]
    controls = [n for n in nodes if not n.get("ignored") and
                n["role"]["value"] in ("button", "textbox", "spinbutton", "image", "combobox")]
    nameless = [n for n in controls if not n.get("name", {}).get("value")]
    if nameless or len(controls) < 8:
        fail(f"of {len(controls)} controls without a name: {nameless}")
    b.js("$('input').focus()")
    seen = set()
    for _ in range(90):
        b.key("Tab", 9, "\t")
        seen.add(b.js("document.activeElement.id"))
    wanted = {"send", "attach", "system", "temperature", "max-tokens", "key", "new", "search",
              "theme"}
    if not wanted <= seen:
        fail(f"Tab reaches {seen} only")


SIZES = ((320, 568), (390, 844), (844, 390), (768, 1024), (1280, 800), (1920, 1080))


def resize(b, width, height):
    b.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
           mobile=width < 1000)


def check_axe(b, what):
    """axe-core finds nothing."""
    found = b.js("axe.run().then(r => r.violations.map(v => v.id + ': ' + "
                 "v.nodes.map(n => n.target + ' ' + n.failureSummary).join('; ')))")
    if found:
        fail(f"axe, {what}: " + "\n".join(found))


def check_states(b):
    """What is seen for a while only is accessible, too."""
    resize(b, 390, 844)
    drop(b, "notes.txt", b"text")
    b.wait("!$('files').hidden")
    press(b, "document.querySelector('.user')", "Edit and send again")
    b.js("(notice('Deleted. ', () => {}), showContext(), "
         "document.querySelectorAll('details').forEach(e => { e.open = true; }))")
    check_axe(b, "editing")
    b.js("(files = [], showFiles(), $('notice').hidden = true, $('new').click())")
    check_axe(b, "no messages")
    b.js("$('list').children[0].firstElementChild.click()")


def test_sizes(b, axe):
    """Phone to desktop, light and dark, drawers open: all is inside, and accessible."""
    if axe:
        with open(axe) as f:
            b.call("Runtime.evaluate", expression=f.read())
    colors = set()
    for width, height in SIZES:
        resize(b, width, height)
        b.check("document.documentElement.scrollWidth <= innerWidth")
        b.check("$('input').getBoundingClientRect().bottom <= innerHeight")
        b.check("$('input').getBoundingClientRect().width > 100")
        for theme in "light", "dark":
            b.js(f"($('theme').value = '{theme}', $('theme').dispatchEvent(new Event('change')))")
            colors.add(b.js("getComputedStyle(document.body).backgroundColor"))
            for drawer in "", "chats", "side":
                if drawer and width >= 1000 or axe and (width, height) not in SIZES[1:5:3]:
                    continue
                if drawer:
                    b.js(f"$('show-{drawer}').click()")
                    b.check(f"getComputedStyle($('{drawer}')).visibility === 'visible'")
                    b.check(f"$('{drawer}').getBoundingClientRect().right <= innerWidth")
                if axe:
                    check_axe(b, f"{width}x{height}, {theme}, {drawer or 'no'} drawer")
                b.key("Escape", 27)
    if axe:
        check_states(b)
    if len(colors) != 2:
        fail(f"colours of light and dark: {colors}")
    b.js("($('theme').value = 'auto', $('theme').dispatchEvent(new Event('change')))")
    for scheme in "light", "dark":
        b.call("Emulation.setEmulatedMedia",
               features=[{"name": "prefers-color-scheme", "value": scheme}])
        if b.js("getComputedStyle(document.body).backgroundColor") not in colors:
            fail("the system's colour scheme is not followed")
    b.call("Emulation.setEmulatedMedia", features=[])
    resize(b, 1280, 800)


def take_screenshot(b, path, size=(1280, 800)):
    resize(b, *size)
    b.js("($('side').scrollTop = 0, $('notice').hidden = true, toEnd())")
    time.sleep(1.2)  # until the next status arrives
    data = b.call("Page.captureScreenshot", format="png")["data"]
    with open(path, "wb") as f:
        f.write(base64.b64decode(data))


def run_fake(b, folder, args):
    path = os.path.join(folder, "log")
    key = "secret key"
    server = subprocess.Popen([sys.executable, FAKE, "--page", args.page, "--key", key, "--log",
                               path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    url = f"http://127.0.0.1:{int(server.stdout.readline())}/"

    def lines():
        with open(path) as f:
            return [json.loads(line) for line in f]

    def log():
        return [x["body"] for x in lines() if x["body"]]
    try:
        load(b, url)
        b.check("document.activeElement === $('input')")
        test_key(b, key)
        b.take_errors("401")
        test_chat(b, log)
        test_markdown(b)
        test_text(b)
        test_ends(b, log, lambda: sum(1 for x in lines() if x.get("gone")))
        test_versions(b, log)
        test_settings(b, log)
        test_context(b)
        test_files(b, log)
        test_list(b)
        test_storage(b, url)
        test_models(b)
        test_panel(b)
        test_long(b)
        b.js("$('new').click()")
        test_random(b)
        test_hostile(b)
        b.js("$('new').click()")
        b.say("markdown")
        b.say("think")
        test_reach(b)
        test_sizes(b, args.axe)
        test_status(b)
        check_quiet(b, url)
    finally:
        server.stdin.close()
        server.wait(10)


def test_status(b):
    """Missing and invalid members of the status are ignored."""
    b.js("poll = () => {}")
    for status in ({}, {"cache": None}, {"cache": {"by_format": "x", "hits": 3}},
                   {"model": 3, "uptime_s": "x", "generation_tps": None, "num_running": None,
                    "cache": {"used_bytes": "3", "by_format": [{}, {"format": None}],
                              "hits": {"exact": None}}}):
        b.js(f"showStatus({json.dumps(status)})")


def check_quiet(b, url):
    """No error, and no request to another server."""
    if b.errors:
        fail(f"console: {b.errors}")
    own = urllib.parse.urlsplit(url).netloc
    others = {r[:100] for r in b.requests
              if not r.startswith("data:") and urllib.parse.urlsplit(r).netloc != own and
              r != "about:blank"}
    if others or not b.requests:
        fail(f"requests to others: {others}")


def test_policy(b):
    """The CSP header is sent, and blocks requests that the page never makes, and other scripts."""
    b.check("fetch('').then(r => /default-src 'none'.*connect-src 'self'/"
            ".test(r.headers.get('Content-Security-Policy')))")
    b.check("fetch('https://example.org/').then(() => false, () => true)")
    b.take_errors("Content Security Policy")
    b.check("(() => { const s = document.createElement('script'); s.append('foreign = 1');"
            " document.body.append(s); s.remove(); return window.foreign === undefined; })()")
    b.take_errors("TrustedScript")
    b.check("(() => { try { make('div').innerHTML = '<b>b</b>'; return false; } "
            "catch { return true; } })()")
    b.take_errors("TrustedHTML")


def test_scripted(b):
    """The parts of the answer of page.sh's model."""
    b.js(LAST + ".querySelector('summary').click()")
    b.wait(LAST + ".querySelector('details').textContent.includes('Let me see.')")
    b.check(BODY + ".querySelector('pre code').textContent === \"int x = '<b>&';\\n\"")
    b.check(BODY + ".textContent.includes('Done.')")
    b.check("!" + LAST + ".innerText.includes('think>')")


STORY = ("Write a Markdown table of three planets with their radius in km. Then write a Python "
         "function with a docstring that computes the area of a sphere, and explain its formula.")


def test_real_settings(b):
    """The server takes what the page sends: continue, a schema, thinking, sampling."""
    b.js("$('new').click()")
    b.js("document.querySelectorAll('aside details').forEach(e => { e.open = true; })")
    b.type("max-tokens", "5")
    b.say("Count to ten.")
    b.wait(LAST + ".innerText.includes('stopped at max tokens')")
    text = b.js("chat.messages.at(-1).content")
    press(b, LAST, "Continue this answer")
    b.wait("!running && " + LAST + ".innerText.includes('10 tokens')")
    b.check(f"chat.messages.at(-1).content.startsWith({json.dumps(text)}) && "
            f"chat.messages.at(-1).content !== {json.dumps(text)}")
    b.js("$('new').click()")
    for field, value in {"max-tokens": "60", "temperature": "0", "top-k": "40", "top-p": "0.9",
                         "min-p": "0.05", "repetition": "1.1", "seed": "1", "schema": json.dumps(
                             {"type": "object", "properties": {"n": {"type": "integer"}},
                              "required": ["n"], "additionalProperties": False})}.items():
        b.type(field, value)
    b.js("($('thinking').value = 'off', $('thinking').dispatchEvent(new Event('input')))")
    b.say("Two and two?")
    b.check("!" + LAST + ".querySelector('[role=alert]').textContent")
    b.check("Number.isInteger(JSON.parse(chat.messages.at(-1).content).n)")


def run_real(b, args):
    url = args.url.rstrip("/") + "/"
    load(b, url)
    if args.key:
        b.wait("$('state').textContent === 'API key needed'")
        b.type("key", args.key + "x")
        time.sleep(1.5)  # until a status request with a wrong key
        b.check("$('state').textContent === 'API key needed'")
        test_key(b, args.key)
        b.take_errors("401")
    b.wait("$('state').textContent === 'connected'")
    test_policy(b)
    b.type("max-tokens", "" if args.screenshots else "100")
    for question in "What is a key-value cache?", "Say that in fewer words.":
        b.say(question)
        b.check(BODY + ".textContent.length > 0")
        b.check("/[0-9]+ tokens · .* prompt tokens cached/.test(" + LAST + ".innerText)")
        if args.scripted:
            test_scripted(b)
    b.check("contextLimit > 0 && !$('context').hidden")
    b.wait("/[1-9].* cached · /.test($('used').textContent) && $('formats').children.length > 5")
    b.wait("/^[1-9].* of requests reused the cache$/.test($('reuse').textContent)")
    if args.screenshots:  # in the middle of an answer
        b.type("input", STORY)
        b.enter()
        b.wait("Number($('tps').textContent) > 1 && running.pieces > 150", 120)
        take_screenshot(b, os.path.join(args.screenshots, "ui.png"))
        b.check("running")
        take_screenshot(b, os.path.join(args.screenshots, "ui-phone.png"), (390, 844))
        b.js("$('stop').click()")
        b.wait("!running")
        press(b, LAST, "Continue this answer")
        b.wait("running && running.pieces > 3")
        b.js("$('stop').click()")
        b.wait("!running")
        b.check("!" + LAST + ".querySelector('[role=alert]').textContent")
        resize(b, 1280, 800)
    test_reach(b)
    if not args.scripted:
        test_real_settings(b)
    check_quiet(b, url)


def main():
    parser = argparse.ArgumentParser()
    for name in "--page", "--axe", "--url", "--key", "--screenshots":
        parser.add_argument(name)
    parser.add_argument("--scripted", action="store_true")
    args = parser.parse_args()
    program = find_browser()
    if not program:
        print("skipped: no Chromium (Debian: chromium-headless-shell)")
        sys.exit(77)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        b = Browser(program, os.path.join(folder, "profile"))
        try:
            if args.url:
                run_real(b, args)
            else:
                run_fake(b, folder, args)
        finally:
            b.close()
    print("page: all good")


if __name__ == "__main__":
    main()
