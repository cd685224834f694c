# SPDX-License-Identifier: Apache-2.0
"""Headless Chromium over the DevTools protocol: a pipe, so that nothing but Python is needed."""
import json
import os
import select
import shutil
import subprocess
import sys
import time

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def find_browser():
    """Its path, or None."""
    return next((p for p in map(shutil.which, BROWSERS) if p), None)


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
                fail(f"never came: {expression}\n{shown[-400:]}\n{self.errors[:2]}")
            time.sleep(0.05)

    def check(self, expression):
        if not self.js(f"Boolean({expression})"):
            fail(f"not so: {expression}\n" + self.js("document.body.innerText")[:3000])

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
