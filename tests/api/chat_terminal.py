# SPDX-License-Identifier: Apache-2.0
"""`kvasir chat` on a pseudo terminal, for chat_conversation.sh: prompt, editing, history, pastes,
Ctrl-C, dim reasoning, control characters, Ctrl-D.

    chat_terminal.py KVASIR URL FOLDER
"""
import json
import os
import pty
import select
import signal
import sys
import termios
import time

kvasir, url, folder = sys.argv[1:]
history = os.path.join(os.environ["XDG_STATE_HOME"], "kvasir", "history")


class Terminal:
    def __init__(self):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm", LC_ALL="C.UTF-8")
            os.chdir(folder)
            os.execv(kvasir, ["kvasir", "chat", "--url", url])
        self.seen = ""

    def read(self, seconds):
        """What the program writes within this time; None: nothing came, "": it has ended."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return None
        try:
            came = os.read(self.fd, 65536).decode(errors="replace")
        except OSError:
            return ""
        self.seen += came
        return came

    def wait(self, text, seconds=20):
        """Waits for the text; returns what came before it, and consumes both."""
        end = time.time() + seconds
        while text not in self.seen:
            if time.time() > end:
                sys.exit(f"chat_terminal: no {text!r} in {self.seen!r}")
            if self.read(0.1) == "" and text not in self.seen:
                sys.exit(f"chat_terminal: ended before {text!r}: {self.seen!r}")
        before, self.seen = self.seen.split(text, 1)
        return before

    def type(self, text):
        os.write(self.fd, text.encode())

    def interrupt(self):
        """Ends an answer by Ctrl-C and waits for the prompt. Linux sends the signal and then drops
        the pending output of the terminal. If the program was fast enough, that includes the
        prompt; Ctrl-L shows it again, at once or, typed too early, a second time."""
        self.type("\x03")
        end = time.time() + 20
        while "> " not in self.seen and time.time() < end:
            came = self.read(1)
            if came is None:
                self.type("\x0c")
            elif came == "":
                break
        self.wait("> ", 0)

    def drop(self, text):
        """Types a line and Ctrl-C in one piece: there it is a key, and nothing is lost."""
        check(termios.tcgetattr(self.fd)[6][termios.VINTR] == b"\0", "Ctrl-C is no key", self)
        self.type(text + "\x03")
        self.wait("\n\x1b[?2004h> ")  # a prompt that Ctrl-L shows again does not look so

    def ended(self):
        end = time.time() + 20
        while time.time() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
            self.read(0.05)
        os.kill(self.pid, signal.SIGKILL)
        sys.exit("chat_terminal: it does not end")


def check(good, what, t):
    if not good:
        sys.exit(f"chat_terminal: {what}: {t.seen!r}")


def said():
    """The messages of the newest request that the server got."""
    with open(os.path.join(folder, "log")) as f:
        bodies = [line["body"] for line in map(json.loads, f) if line["body"]]
    return bodies[-1]["messages"]


t = Terminal()
t.wait("/help lists the commands")
t.wait("> ")
t.type("helo\x1b[Dl\r")  # one to the left, then an inserted letter
t.wait("You said: hello")
t.wait("> ")

# a paste with line ends and a tab is one message, sent by Enter
t.type("\x1b[200~first\rsecond\tü\x1b[201~")
t.wait("ü")
t.type("!\r")
t.wait("You said: first\r\nsecond\tü!")
check(said()[-1]["content"] == "first\nsecond\tü!", "the paste", t)
t.wait("> ")

# a continued line has another prompt
t.type("one\\\r")
t.wait("... ")
t.type("two\r")
t.wait("You said: one\r\ntwo")
t.wait("> ")

# the last message can be edited, with its line ends
t.type("/edit\r")
t.wait("two")
t.type("!\r")
t.wait("You said: one\r\ntwo!")
check([m["content"] for m in said()][-1] == "one\ntwo!", "/edit", t)
check("one\ntwo" not in [m["content"] for m in said()], "/edit keeps the old message", t)
t.wait("> ")

# reasoning is dim; the answer is not
t.type("think\r")
t.wait("\x1b[2mLet me think of it.\x1b[0m")
t.wait("It is done.")
t.wait("> ")

# control characters in an answer do not move the cursor
t.type("control\r")
t.wait("?[2Jgone ?31m ??")
t.wait("> ")

# an error is one line; the conversation continues without the failed message
t.type("refuse\r")
t.wait("HTTP 400: messages[0].content: is not wanted")
t.wait("> ")

# Ctrl-C ends the answer, not the program, and drops a line at the prompt; both more than once
for _ in range(2):
    t.type("slow\r")
    t.wait("7 8 9 ")
    t.interrupt()
    t.drop("not this")
t.type("after\r")
t.wait("You said: after")
messages = said()
check(all(m["content"] not in ("refuse", "not this") for m in messages), "what failed stays", t)
stopped = messages[-2]["content"]
check(stopped.startswith("0 1 2 ") and len(stopped) < 5000, "what was ended is kept", t)
t.wait("> ")
t.type("/stats\r")
t.wait("prompt: ")
t.wait("> ")
t.type("\x04")
check(t.ended() == 0, "Ctrl-D", t)

# the next run has the history, whose file only its owner can read
check(os.stat(history).st_mode & 0o777 == 0o600, "the history's mode", t)
t = Terminal()
t.wait("> ")
t.type("\x1b[A\x1b[A\r")  # past /stats to the line before it
t.wait("You said: after")
t.wait("> ")
t.type("/quit\r")
check(t.ended() == 0, "/quit", t)
