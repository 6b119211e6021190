"""Drives an installed Chromium without a window, by the DevTools protocol over a pipe."""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_START = (
    "import fcntl, os, sys\n"
    "read, write = (fcntl.fcntl(int(word), fcntl.F_DUPFD, 10) for word in sys.argv[1:3])\n"
    "os.dup2(read, 3), os.dup2(write, 4)\n"
    "os.execv(sys.argv[3], sys.argv[3:])\n"
)
"""The browser reads commands from file 3 and answers in file 4."""
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str | None:
    """The path of a Chromium on this machine."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab.

    Attributes:
        problems: exceptions and messages of errors, in order.
        requests: the URL of every request.
    """

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write, self._rest, self._number = read, write, b"", 0
        self.problems: list[str] = []
        self.requests: list[str] = []
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        self._session: str | None = None
        self._session = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self._send(f"{domain}.enable")
        self.resize(1280, 900)

    _session: str | None = None

    def _message(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._read], [], [], left)[0]:
                raise TimeoutError("the browser does not answer")
            if not (piece := os.read(self._read, 2**20)):
                raise EOFError("the browser has ended")
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        given = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(given["exceptionDetails"])[:2000])
        elif message.get("method") == "Log.entryAdded" and given["entry"]["level"] == "error":
            self.problems.append(f"{given['entry']['text']} {given['entry'].get('url', '')}")
        elif message.get("method") == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])
        return message

    def _send(self, method: str, **given: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": given}
        if self._session is not None:
            message["sessionId"] = self._session
        content = memoryview(json.dumps(message).encode() + b"\0")
        while content:
            content = content[os.write(self._write, content) :]
        deadline = time.monotonic() + 60
        while True:
            answer = self._message(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, url: str) -> None:
        """Go to a page and wait until it is loaded."""
        self._send("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script: str) -> Any:
        """The value of an expression; of a promise, what it resolves to."""
        answer = self._send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, json.dumps(answer["exceptionDetails"])[:2000]
        return answer["result"].get("value")

    def wait(self, script: str, seconds: float = 60) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + seconds
        while not self.run(f"Boolean({script})"):
            if time.monotonic() > deadline:
                raise AssertionError(f"never true: {script}; problems: {self.problems}")
            time.sleep(0.02)

    def place(self, selector: str) -> tuple[float, float, float, float]:
        """Left, top, width and height of an element, scrolled into view and at rest for two frames."""
        script = (
            "(async (element) => { element.scrollIntoView({block: 'center'}); let last = '';"
            " for (let frame = 0; frame < 100; frame += 1) {"
            " await new Promise(requestAnimationFrame);"
            " const r = element.getBoundingClientRect(), box = [r.left, r.top, r.width, r.height];"
            " if (String(box) === last) return box; last = String(box); } })"
        )
        return tuple(self.run(f"{script}(document.querySelector({json.dumps(selector)}))"))

    def _mouse(self, kind: str, x: float, y: float) -> None:
        held = {"button": "left", "buttons": 0 if kind == "mouseReleased" else 1, "clickCount": 1}
        self._send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **held)

    def click(self, selector: str, across: float = 0.5, down: float = 0.5) -> None:
        """Click on a place of an element, in shares of its size."""
        left, top, width, height = self.place(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self._mouse(kind, left + across * width, top + down * height)

    def draw(self, selector: str, points: list[tuple[float, float]]) -> None:
        """Press, move along points in shares of the element's size, and release."""
        left, top, width, height = self.place(selector)
        places = [(left + x * width, top + y * height) for x, y in points]
        self._mouse("mousePressed", *places[0])
        for place in places[1:]:
            self._mouse("mouseMoved", *place)
        self._mouse("mouseReleased", *places[-1])

    def key(self, name: str) -> None:
        """Press a key, such as "Tab" or "Enter"."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "ArrowLeft": 37, "ArrowRight": 39, "ArrowDown": 40}
        text = {"Enter": "\r", " ": " "}.get(name, "")
        for kind in ("keyDown", "keyUp"):
            typed = {"text": text} if text and kind == "keyDown" else {}
            self._send("Input.dispatchKeyEvent", type=kind, key=name, windowsVirtualKeyCode=codes[name], **typed)

    def set_value(self, selector: str, value: object) -> None:
        """Set a slider, a field or a list, as a person would: with its events."""
        self.run(
            f"(e => {{ e.value = {json.dumps(str(value))}; for (const kind of ['input', 'change'])"
            f" e.dispatchEvent(new Event(kind, {{bubbles: true}})); }})(document.querySelector({json.dumps(selector)}))"
        )

    def choose_file(self, selector: str, path: Path) -> None:
        """Give a file to an input of files."""
        root = self._send("DOM.getDocument")["root"]["nodeId"]
        node = self._send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self._send("DOM.setFileInputFiles", files=[str(path)], nodeId=node)

    def resize(self, width: int, height: int) -> None:
        """Set the size of the window."""
        self._send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Write a PNG of the page."""
        content = self._send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(content))


@contextlib.contextmanager
def browser_page() -> Iterator[Page]:
    """A tab of a new browser with an empty profile."""
    path = find_browser()
    assert path is not None
    (child_read, write), (read, child_write) = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--remote-debugging-pipe",
            "--disable-background-networking",
            "--disable-component-update",
        ]
        words = [path, *options, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(
            [sys.executable, "-c", _START, str(child_read), str(child_write), *words],
            pass_fds=(child_read, child_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(child_read)
        os.close(child_write)
        try:
            yield Page(read, write)
        finally:
            os.close(write)
            os.close(read)
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
