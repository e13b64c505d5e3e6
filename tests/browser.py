"""Headless Chromium, driven over its DevTools pipe: opens a page, runs expressions in it."""

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--remote-debugging-pipe",
)  # fmt: skip


class Browser:
    """One page in one process. What ``run`` evaluates no policy of the page forbids."""

    def __init__(self, folder: Path):
        pipes = [folder / "commands", folder / "answers"]
        for pipe in pipes:
            os.mkfifo(pipe)
        words = [str(CHROMIUM), *FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
        self._process = subprocess.Popen(
            ["sh", "-c", 'exec "$@" 3<"$0/commands" 4>"$0/answers"', folder, *words],
            stderr=subprocess.DEVNULL,
        )
        self._commands, self._answers = pipes[0].open("wb"), pipes[1].open("rb")
        self._number, self._session, self._left = 0, {}, b""
        self.events: list[dict[str, Any]] = []
        page = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=page, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self._commands.close()
        self._answers.close()
        self._process.terminate()
        self._process.wait()

    def call(self, method: str, **params: object) -> dict[str, Any]:
        """One DevTools command and its result."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": params, **self._session}
        self._commands.write(json.dumps(command).encode() + b"\0")
        self._commands.flush()
        while (message := self._message()).get("id") != self._number:
            self.events.append(message)
        return message["result"]

    def open(self, page: Path, width: int) -> None:
        """Show a file in a window of so many CSS pixels, loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=800, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        self.events.clear()
        self.call("Page.navigate", url=page.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._message())

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited."""
        done = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """What is in the window, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def press(self, key: str) -> None:
        """One key, as the keyboard would."""
        codes = {"Tab": 9, " ": 32}
        text = {"text": key} if key == " " else {}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind, key=key, windowsVirtualKeyCode=codes[key], **text,
            )  # fmt: skip

    def complaints(self) -> list[str]:
        """What the browser's console says of the page, e.g. what its policy stopped."""
        said = (e for e in self.events if e.get("method") == "Log.entryAdded")
        return [event["params"]["entry"]["text"] for event in said]

    def requests(self) -> list[str]:
        """The URLs that the page asked for since it was opened."""
        sent = (e for e in self.events if e.get("method") == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in sent]

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            got = self._answers.read1(1 << 16)  # type: ignore[attr-defined]
            assert got, "the browser ended"
            self._left += got
        message, _, self._left = self._left.partition(b"\0")
        return json.loads(message)  # type: ignore[no-any-return]
