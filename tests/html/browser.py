"""Chromium without a window, driven over its debugging pipe. Standard library only.

    with Browser(executable) as page:
        page.open("file:///tmp/r.html")
        page.evaluate("document.title")
"""
import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time

KEYS = {"Enter": ("Enter", 13, "\r"), "Escape": ("Escape", 27, ""),
        "ArrowRight": ("ArrowRight", 39, ""), "ArrowUp": ("ArrowUp", 38, "")}


def find_chromium():
    named = os.environ.get("DISTGRAD_CHROMIUM")
    names = [named] if named else ["chromium", "chromium-browser", "google-chrome",
                                   "google-chrome-stable"]
    return next((path for path in map(shutil.which, names) if path), None)


class Browser:
    def __init__(self, executable, width=1440, height=900):
        self.folder = tempfile.mkdtemp(prefix="distgrad-chromium-")
        to_read, self.to = os.pipe()
        self.back, to_write = os.pipe()

        def take_pipes():  # the browser reads 3 and writes 4
            for fd, place in ((os.dup(to_read), 3), (os.dup(to_write), 4)):
                os.dup2(fd, place)

        self.process = subprocess.Popen(
            [executable, "--headless=new", "--no-sandbox", "--disable-gpu",
             "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
             "--remote-debugging-pipe", f"--user-data-dir={self.folder}",
             f"--window-size={width},{height}", "about:blank"],
            preexec_fn=take_pipes, close_fds=False, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self.number = 0
        self.rest = b""
        self.events = []
        try:
            page = next(
                t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
            self.session = self.call("Target.attachToTarget", targetId=page["targetId"],
                                     flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(domain + ".enable")
            self.size(width, height)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.to)
        os.close(self.back)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _receive(self, timeout=120):
        deadline = time.monotonic() + timeout
        while b"\0" not in self.rest:
            if not select.select([self.back], [], [], max(0, deadline - time.monotonic()))[0]:
                raise TimeoutError("chromium does not answer")
            part = os.read(self.back, 1 << 20)
            if not part:
                raise EOFError("chromium has ended")
            self.rest += part
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if hasattr(self, "session"):
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def wait_for(self, event):
        while not any(e.get("method") == event for e in self.events):
            self.events.append(self._receive())

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 600)

    def theme(self, theme):
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": theme}])

    def open(self, address):
        """Returns the seconds from asking for the page to its load event."""
        self.events.clear()
        self.call("Page.navigate", url="about:blank")
        self.wait_for("Page.loadEventFired")
        self.events.clear()
        started = time.monotonic()
        self.call("Page.navigate", url=address)
        self.wait_for("Page.loadEventFired")
        return time.monotonic() - started

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                           awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description"))
        return answer["result"].get("value")

    def key(self, key):
        name, code, text = KEYS[key] if key in KEYS else (key, ord(key.upper()), key)
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, windowsVirtualKeyCode=code,
                      **({"text": text} if kind == "keyDown" and text else {}))

    def type(self, text):
        self.call("Input.insertText", text=text)

    def screenshot(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def complaints(self):
        """What went to the console, and what was asked of the network."""
        self.evaluate("0")
        found = []
        for event in self.events:
            method, p = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(p["exceptionDetails"].get("exception",
                                                       {}).get("description", "exception"))
            elif method == "Log.entryAdded" and p["entry"]["level"] in ("error", "warning"):
                found.append(p["entry"]["text"])
            elif method == "Network.requestWillBeSent":
                address = p["request"]["url"]
                if not address.startswith(("file:", "data:", "about:")):
                    found.append("asked for " + address)
        return found
