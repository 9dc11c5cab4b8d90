"""A Chromium without a window, driven over its DevTools socket: no driver and no package beside aiohttp.

The package is Debian's `chromium` (`apt-get install chromium`), or any Chrome; CHROMIUM names another binary.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# Nothing of these reaches the network; a container has no sandbox for the root user and a small /dev/shm.
OPTIONS = (
    "--headless=new", "--remote-debugging-port=0", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-extensions", "--disable-default-apps", "--hide-scrollbars", "--font-render-hinting=none",
    "--enable-precise-memory-info", "--js-flags=--expose-gc",
)  # fmt: skip
# Seconds for the start of the browser, and for one command to it.
START_S = 60.0
COMMAND_S = 120.0
# Milliseconds after which a page that has nothing to do is on the screen.
REST_MS = 300
# Codes of keys that are not letters, by the name that an event has.
KEYS = {
    "Enter": 13, "Escape": 27, "Tab": 9, "ArrowUp": 38, "ArrowDown": 40, "ArrowLeft": 37, "ArrowRight": 39,
    "Home": 36, "End": 35, "PageUp": 33, "PageDown": 34,
}  # fmt: skip


class BrowserError(RuntimeError):
    """The browser did not start, or a command to it failed."""


def find_chromium() -> str | None:
    """Return the path of a Chromium on this machine, None if there is none."""
    names = (os.environ.get("CHROMIUM"), *NAMES)
    return next((path for name in names if name and (path := shutil.which(name))), None)


class Browser:
    """A running Chromium with one page.

    Attributes:
        problems: console messages, uncaught errors and refused requests of the page since `open`.
        requests: addresses that the page has asked for since `open`.
        pid: of the browser's first process.

    Raises:
        BrowserError: there is no Chromium, or it does not start.
    """

    def __init__(self) -> None:
        binary = find_chromium()
        if binary is None:
            raise BrowserError(
                f"no Chromium found (looked for {', '.join(NAMES)}); install one (Debian: apt-get install "
                "chromium) or set CHROMIUM=/path/to/it"
            )
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._count = 0
        self._session_id = ""
        self._loop = asyncio.new_event_loop()
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        self._log = Path(self._profile.name) / "stderr.txt"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [binary, *OPTIONS, f"--user-data-dir={self._profile.name}/profile", "about:blank"],
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        self.pid = self._process.pid
        try:
            self._loop.run_until_complete(self._connect())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the browser."""
        try:
            self._loop.run_until_complete(self._disconnect())
            self._process.wait(10)
        except (subprocess.TimeoutExpired, aiohttp.ClientError, OSError, AttributeError, TimeoutError):
            self._process.kill()
            self._process.wait()
        finally:
            self._loop.close()
            self._profile.cleanup()

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def _connect(self) -> None:
        deadline = time.monotonic() + START_S
        while not (found := re.search(rb"listening on (ws://\S+)", self._log.read_bytes())):
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = self._log.read_text(errors="replace")[-400:]
                raise BrowserError(f"Chromium did not open its DevTools within {START_S:g} s: {tail}")
            await asyncio.sleep(0.05)
        self._http = aiohttp.ClientSession()
        self._socket = await self._http.ws_connect(found[1].decode(), max_msg_size=0)
        target = await self._send("Target.createTarget", url="about:blank")
        attached = await self._send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session_id = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Performance"):
            await self._send(f"{domain}.enable")

    async def _disconnect(self) -> None:
        self._session_id = ""
        try:
            async with asyncio.timeout(5):
                await self._send("Browser.close")
        finally:
            await self._socket.close()
            await self._http.close()

    async def _send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result; events that arrive before it are taken in."""
        self._count += 1
        number = self._count
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session_id:
            message["sessionId"] = self._session_id
        await self._socket.send_json(message)
        while True:
            async with asyncio.timeout(COMMAND_S):
                answer = await self._socket.receive_json()
            if answer.get("id") != number:
                self._take_in(answer)
            elif "error" in answer:
                raise BrowserError(f"{method}: {answer['error'].get('message')}")
            else:
                return answer["result"]

    def _take_in(self, event: dict[str, Any]) -> None:
        method = event.get("method")
        values = event.get("params", {})
        if method == "Runtime.consoleAPICalled":
            texts = [str(entry.get("value", entry.get("description"))) for entry in values["args"]]
            self.problems.append(f"{values['type']}: {' '.join(texts)}")
        elif method == "Runtime.exceptionThrown":
            details = values["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Log.entryAdded":
            self.problems.append(f"{values['entry']['level']}: {values['entry']['text']}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])

    def command(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a DevTools command and return its result."""
        return self._loop.run_until_complete(self._send(method, **params))

    def look(self, width: int = 1280, height: int = 900, dark: bool = False, scale: float = 1.0) -> None:
        """Give the page a size in pixels, and say whether its reader prefers dark colours."""
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=scale, mobile=width < 500,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])

    def offline(self, cut_off: bool = True) -> None:
        """Cut the page off from every network, or connect it again."""
        unlimited = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        self.command("Network.emulateNetworkConditions", offline=cut_off, **unlimited)

    def leave(self) -> None:
        """Leave the page for an empty one, and wait until it is there: a page that goes would answer for the
        next one.
        """
        self.command("Page.navigate", url="about:blank")
        self.wait("location.href === 'about:blank'")
        self.problems.clear()
        self.requests.clear()

    def open(self, page: str | Path, fragment: str = "", wait_s: float = 60.0) -> None:
        """Open a file or an address, and wait until a report there is drawn.

        Args:
            page: a path, or an address with `://`.
            fragment: what follows `#` in the address.
            wait_s: seconds after which BrowserError is raised.
        """
        self.leave()
        address = page if isinstance(page, str) and "://" in page else Path(page).absolute().as_uri()
        self.command("Page.navigate", url=f"{address}{fragment and '#'}{fragment}")
        self.wait("performance.getEntriesByName('report:painted').length > 0", wait_s)

    def wait(self, condition: str, wait_s: float = 60.0) -> None:
        """Wait until a JavaScript expression is true.

        Raises:
            BrowserError: it is not after `wait_s` seconds.
        """
        deadline = time.monotonic() + wait_s
        while not self._is_true(condition):
            if time.monotonic() > deadline:
                raise BrowserError(f"not true after {wait_s:g} s: {condition}; page: {self.problems[:5]}")
            time.sleep(0.02)

    def _is_true(self, condition: str) -> bool:
        try:
            return bool(self.evaluate(condition))
        except BrowserError as error:
            # While a page loads, the context of the expression may go away, with or without its process.
            if "context" in str(error) or "navigated or closed" in str(error):
                return False
            raise

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page; a promise is awaited.

        Raises:
            BrowserError: it throws.
        """
        answer = self.command(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True
        )
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise BrowserError(details.get("exception", {}).get("description") or details["text"])
        return answer["result"].get("value")

    def press(self, *keys: str, shift: bool = False) -> None:
        """Press keys one after another: a character, or a name of `KEYS`."""
        for key in keys:
            event: dict[str, Any] = {"key": key, "modifiers": 8 if shift else 0}
            if key in KEYS:
                event |= {"code": key, "windowsVirtualKeyCode": KEYS[key]}
            text = "\r" if key == "Enter" else key if len(key) == 1 else ""
            self.command(
                "Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **event,
                **({"text": text} if text else {}),
            )  # fmt: skip
            self.command("Input.dispatchKeyEvent", type="keyUp", **event)

    def click(self, selector: str) -> None:
        """Click in the middle of the first element that a CSS selector finds."""
        x, y = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); "
            "e.scrollIntoView({block: 'center'}); "
            "const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.command("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path: Path, whole: bool = False) -> None:
        """Write a PNG of the window, or of the whole page."""
        image = self.command("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(image["data"]))

    def heap_bytes(self) -> int:
        """Return the bytes of the page's JavaScript heap after a collection of garbage."""
        self.command("HeapProfiler.collectGarbage")
        metrics = self.command("Performance.getMetrics")["metrics"]
        return int(next(entry["value"] for entry in metrics if entry["name"] == "JSHeapUsedSize"))

    def first_paint_ms(self) -> float:
        """Return the milliseconds from the navigation until the first page of the report was drawn."""
        return float(self.evaluate("performance.getEntriesByName('report:painted')[0].startTime"))

    def rest(self) -> None:
        """Wait until a page that was opened has nothing to do; it is drawn on the screen a while after
        `open` returns, and a script would wait for its turn beside that.
        """
        self.evaluate(
            "new Promise((resolve) => requestIdleCallback("
            f"() => setTimeout(() => requestIdleCallback(resolve), {REST_MS})))"
        )

    def filter_ms(self, text: str) -> float:
        """Filter the list of episodes by a text; return the milliseconds until it is laid out."""
        return float(self.evaluate(f"report.bench.filter({json.dumps(text)})"))

    def open_ms(self, episode: int) -> float:
        """Open an episode; return the milliseconds until its dialogue is laid out."""
        return float(self.evaluate(f"report.bench.open({episode})"))


@contextmanager
def chromium(**look: Any) -> Iterator[Browser]:
    """A browser without a network, ended with the block; `look` is passed to `Browser.look`."""
    with Browser() as browser:
        browser.look(**look)
        browser.offline()
        yield browser
