# SPDX-License-Identifier: Apache-2.0
"""Drives the page in headless Chromium over the DevTools protocol (a pipe, so that nothing but
Python is needed): chats, settings, errors, storage, keyboard, accessible names; no error on the
console, no request to another origin.

    page.py [--url URL [--key KEY] [--scripted]] [--screenshot FILE]

Without --url it uses a fake server, whose answers it knows; with it, it asks two questions through
the page of a real server. KEY is that server's API key; --scripted says that its model is the one
of page.sh. Exit code 77: skipped, there is no Chromium.
"""
import argparse
import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse

HERE = os.path.dirname(os.path.abspath(__file__))
PAGE = os.path.join(HERE, "..", "..", "src", "server", "page.html")
FAKE = os.path.join(HERE, "..", "support", "fake_server.py")
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def fail(why):
    sys.exit("page: FAILED: " + why)


class Browser:
    """Chromium and one tab."""

    def __init__(self, program, folder):
        to_read, to_write = os.pipe(), os.pipe()
        command = [program, "--headless", "--remote-debugging-pipe", "--no-first-run",
                   "--disable-gpu", "--disable-background-networking", "--disable-component-update",
                   "--disable-sync", "--disable-extensions", "--hide-scrollbars",
                   "--disable-dev-shm-usage", "--window-size=1280,800", "--user-data-dir=" + folder]
        if os.getuid() == 0:
            command.append("--no-sandbox")

        def give_pipes():  # Chromium reads from 3 and writes to 4
            os.dup2(os.dup2(to_read[0], 60), 3)
            os.dup2(os.dup2(to_write[1], 61), 4)

        self.process = subprocess.Popen(command + ["about:blank"], preexec_fn=give_pipes,
                                        close_fds=False, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read[0])
        os.close(to_write[1])
        self.out, self.inp = to_read[1], to_write[0]
        self.buffer, self.number, self.session = b"", 0, None
        self.errors, self.requests = [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target,
                                 flatten=True)["sessionId"]
        for domain in "Page", "Runtime", "Network", "Log":
            self.call(domain + ".enable")

    def message(self, seconds):
        end = time.time() + seconds
        while b"\0" not in self.buffer:
            if not select.select([self.inp], [], [], max(0, end - time.time()))[0]:
                return None
            data = os.read(self.inp, 1 << 20)
            if not data:
                fail("Chromium ended")
            self.buffer += data
        one, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(one)

    def event(self, message):
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"])[:600])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.errors.append(json.dumps(params["args"])[:600])
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def call(self, method, **params):
        self.number += 1
        request = {"id": self.number, "method": method, "params": params}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.out, json.dumps(request).encode() + b"\0")
        end = time.time() + 60
        while time.time() < end:
            m = self.message(end - time.time())
            if m and m.get("id") == self.number:
                return m["result"] if "result" in m else fail(f"{method}: {m['error']}")
            if m:
                self.event(m)
        return fail(method + ": no answer")

    def js(self, expression):
        """The value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                           awaitPromise=True)
        if "exceptionDetails" in result:
            fail(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, expression, seconds=30):
        end = time.time() + seconds * int(os.environ.get("TIMEOUT_FACTOR", 1))
        while not self.js(f"Boolean({expression})"):
            if time.time() > end:
                shown = self.js("document.body.innerText")
                fail(f"never came: {expression}\n{shown}\n{self.errors}")
            time.sleep(0.05)

    def check(self, expression):
        if not self.js(f"Boolean({expression})"):
            fail(f"not so: {expression}\n" + self.js("document.body.innerText"))

    def key(self, name, code, text=None, modifiers=0):
        text = {"text": text} if text else {}
        for kind in "keyDown", "keyUp":
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name,
                      windowsVirtualKeyCode=code, modifiers=modifiers,
                      **(text if kind == "keyDown" else {}))

    def type(self, where, text):
        """Types into a field as a user does, replacing its text."""
        self.js(f"$('{where}').focus(), $('{where}').select()")
        if text:
            self.call("Input.insertText", text=text)
        else:
            self.key("Delete", 46)

    def enter(self):
        self.key("Enter", 13, "\r")

    def say(self, text):
        """Sends a message and waits for the end of its answer."""
        n = self.js("document.querySelectorAll('.answer').length")
        self.type("input", text)
        self.enter()
        self.wait(f"document.querySelectorAll('.answer').length > {n}")
        self.wait("!running", 120)

    def take_errors(self, wanted):
        """Clears the errors that a test meant to cause; each must contain the text."""
        wrong = [e for e in self.errors if wanted not in e]
        if wrong or not self.errors:
            fail(f"console: {wrong or 'no ' + wanted}")
        self.errors.clear()

    def close(self):
        self.process.kill()
        self.process.wait()


LAST = "[...document.querySelectorAll('.answer')].at(-1)"


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
    b.check("$('model').textContent === 'fake-model'")
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


def test_text(b):
    """A model's answer is shown as text, never as HTML."""
    b.say("code")
    b.check(LAST + ".querySelector('pre code').textContent === "
            "\"int main(void) { return '<b>&' != 0; }\"")
    b.check(LAST + ".querySelector('p code').textContent === '<i>'")
    b.check("$('log').querySelectorAll('img, i, b, script').length === 0")
    b.check(LAST + ".innerText.includes('<img src=x onerror=alert(1)>')")
    b.say("think")
    b.check(LAST + ".querySelector('details').open === false")
    b.check(LAST + ".querySelector('details').textContent.includes('Let me think of it.')")
    b.check(LAST + ".querySelector(':scope > .body').textContent === 'It is done.'")
    b.js("(chat.messages.at(-1).content = '```\\nnot closed', showChat())")
    b.check(LAST + ".querySelector('pre').textContent === 'not closed'")


def test_ends(b, gone):
    """After a stopped, refused or broken answer the conversation continues."""
    for stop in "b.key('Escape', 27)", "b.js('$(\"stop\").click()')":
        b.type("input", "slow")
        b.enter()
        b.wait(LAST + ".innerText.includes('7 8 9')")
        b.check("$('send').hidden && !$('stop').hidden")
        b.wait("Number($('tps').textContent) > 1")
        exec(stop)
        b.wait("!running")
        b.check("!$('send').hidden && $('stop').hidden")
    end = time.time() + 20
    while gone() < 2:
        if time.time() > end:
            fail("the server does not see that the answer was stopped")
        time.sleep(0.1)
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
    b.check(LAST + ".innerText.includes('cut at its length')")


def test_storage(b, url):
    """A reload restores everything; conversations can be opened, continued and deleted."""
    b.js("$('new').click()")
    b.check("chat === null && $('hello')")
    b.say("Second")
    b.check("$('list').children.length === 2")
    load(b, url)
    b.wait("$('state').textContent === 'connected'")  # with the key from sessionStorage
    b.check("$('list').children.length === 2")
    b.js("$('list').children[1].firstElementChild.click()")
    b.check("$('log').querySelectorAll('article').length > 15")
    b.js("$('list').children[1].lastElementChild.click()")
    b.check("$('list').children.length === 1 && $('hello')")
    b.js("$('list').children[0].firstElementChild.click()")
    n = b.js("document.querySelectorAll('article').length")
    b.js(LAST + ".querySelector('.foot button:last-child').click()")  # regenerates
    b.wait("!running")
    b.check(f"document.querySelectorAll('article').length === {n}")
    # invalid contents of localStorage are ignored
    b.js("localStorage.setItem('kvasir.chats', '[3, {\"title\": 1}, {\"title\": \"x\", "
         "\"messages\": [{}]}]')")
    load(b, url)
    b.check("chats.length === 0")
    b.js("localStorage.setItem('kvasir.chats', '{')")
    load(b, url)
    b.check("chats.length === 0")


def test_status(b):
    """Missing and invalid members of the status are ignored."""
    b.js("poll = () => {}")
    for status in ({}, {"cache": None}, {"cache": {"by_format": "x", "hits": 3}},
                   {"model": 3, "uptime_s": "x", "generation_tps": None, "num_running": None,
                    "cache": {"used_bytes": "3", "by_format": [{}, {"format": None}],
                              "hits": {"exact": None}}}):
        b.js(f"showStatus({json.dumps(status)})")


def test_reach(b):
    """Every control has a name and is reached by Tab; both colour schemes, narrow and wide."""
    nodes = b.call("Accessibility.getFullAXTree")["nodes"]
    controls = [n for n in nodes if not n.get("ignored") and
                n["role"]["value"] in ("button", "textbox", "spinbutton", "image")]
    nameless = [n for n in controls if not n.get("name", {}).get("value")]
    if nameless or len(controls) < 8:
        fail(f"of {len(controls)} controls without a name: {nameless}")
    b.js("$('input').focus()")
    seen = set()
    for _ in range(20):
        b.key("Tab", 9, "\t")
        seen.add(b.js("document.activeElement.id"))
    if not {"send", "system", "temperature", "max-tokens", "key", "new"} <= seen:
        fail(f"Tab reaches {seen} only")
    colors = set()
    for scheme in "light", "dark":
        b.call("Emulation.setEmulatedMedia",
               features=[{"name": "prefers-color-scheme", "value": scheme}])
        colors.add(b.js("getComputedStyle(document.body).backgroundColor"))
    if len(colors) != 2:
        fail("one colour scheme")
    for width in 360, 1280:
        b.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1,
               mobile=False)
        b.check("document.documentElement.scrollWidth <= innerWidth")
        b.check("$('input').getBoundingClientRect().bottom <= innerHeight")
    b.call("Emulation.setEmulatedMedia", features=[])


def take_screenshot(b, path):
    b.call("Emulation.setDeviceMetricsOverride", width=1280, height=800, deviceScaleFactor=1,
           mobile=False)
    b.js("$('side').scrollTop = 0")
    time.sleep(1.2)  # until the next status arrives
    data = b.call("Page.captureScreenshot", format="png")["data"]
    with open(path, "wb") as f:
        f.write(base64.b64decode(data))


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


def run_fake(b, folder, screenshot):
    path = os.path.join(folder, "log")
    key = "secret key"
    server = subprocess.Popen([sys.executable, FAKE, "--page", PAGE, "--key", key, "--log", path],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    url = f"http://127.0.0.1:{int(server.stdout.readline())}/"

    def lines():
        with open(path) as f:
            return [json.loads(line) for line in f]
    try:
        load(b, url)
        b.check("document.activeElement === $('input')")
        test_key(b, key)
        b.take_errors("401")
        test_chat(b, lambda: [x["body"] for x in lines() if x["body"]])
        test_text(b)
        test_ends(b, lambda: sum(1 for x in lines() if x.get("gone")))
        test_storage(b, url)
        b.say("What is a key-value cache?")
        b.say("And a page of it?")
        if screenshot:
            take_screenshot(b, screenshot)
        test_reach(b)
        test_status(b)
        check_quiet(b, url)
    finally:
        server.stdin.close()
        server.wait(10)


def test_policy(b):
    """The CSP header is sent, and blocks requests that the page never makes, and other scripts."""
    b.check("fetch('').then(r => /default-src 'none'.*connect-src 'self'/"
            ".test(r.headers.get('Content-Security-Policy')))")
    b.check("fetch('https://example.org/').then(() => false, () => true)")
    b.take_errors("Content Security Policy")
    b.check("(() => { const s = document.createElement('script'); s.textContent = 'foreign = 1';"
            " document.body.append(s); s.remove(); return window.foreign === undefined; })()")
    b.take_errors("Content Security Policy")


def test_scripted(b):
    """The parts of the answer of page.sh's model."""
    b.check(LAST + ".querySelector('details').textContent.includes('Let me see.')")
    b.check(LAST + ".querySelector('pre code').textContent === \"int x = '<b>&';\"")
    b.check(LAST + ".querySelector(':scope > .body').textContent.includes('Done.')")
    b.check("!" + LAST + ".innerText.includes('think>')")


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
    b.type("max-tokens", "" if args.screenshot else "100")
    for question in "What is a key-value cache?", "Say that in fewer words.":
        b.say(question)
        b.check(LAST + ".querySelector('.body:not(details *)').textContent.length > 0")
        b.check("/[0-9]+ tokens · .* prompt tokens cached/.test(" + LAST + ".innerText)")
        if args.scripted:
            test_scripted(b)
    b.wait("parseFloat($('used').textContent) > 0 && $('formats').children.length > 6")
    b.wait("[...$('hits').querySelectorAll('dd')].some(e => Number(e.textContent) > 0)")
    if args.screenshot:  # in the middle of an answer
        b.type("input", "Write a long story about a raven that remembers everything.")
        b.enter()
        b.wait("Number($('tps').textContent) > 1 && running.pieces > 20")
        take_screenshot(b, args.screenshot)
        b.check("running")
        b.js("$('stop').click()")
        b.wait("!running")
    test_reach(b)
    check_quiet(b, url)


def main():
    parser = argparse.ArgumentParser()
    for name in "--url", "--key", "--screenshot":
        parser.add_argument(name)
    parser.add_argument("--scripted", action="store_true")
    args = parser.parse_args()
    program = next((p for p in map(shutil.which, BROWSERS) if p), None)
    if not program:
        print("skipped: no Chromium (Debian: chromium-headless-shell)")
        sys.exit(77)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        b = Browser(program, os.path.join(folder, "profile"))
        try:
            if args.url:
                run_real(b, args)
            else:
                run_fake(b, folder, args.screenshot)
        finally:
            b.close()
    print("page: all good")


if __name__ == "__main__":
    main()
