"""A real browser without a screen, spoken to through two pipes: Chromium's own protocol, no driver needed."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One tab, as wide as asked."""

    def __init__(self, profile: Path, width: int = 1200, height: int = 1600, dark: bool = False) -> None:
        hears, tells = os.pipe()
        listens, says = os.pipe()
        words = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        # Chromium reads from descriptor 3 and writes to 4.
        shell = ["bash", "-c", f'exec "$@" 3<&{hears} 4>&{says}', "browser", CHROMIUM, *words, "about:blank"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(shell, pass_fds=(hears, says), **quiet)
        os.close(hears)
        os.close(says)
        self.tells, self.listens = os.fdopen(tells, "wb", buffering=0), os.fdopen(listens, "rb", buffering=0)
        self.heard, self.count, self.session = b"", 0, None
        self.events: list[dict[str, Any]] = []
        """what the page logged, and the requests it made"""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        for part in ("Page", "Runtime", "Network"):
            self.call(f"{part}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self.count += 1
        asked = {"id": self.count, "method": method, "params": params}
        self.tells.write(json.dumps(asked | ({"sessionId": self.session} if self.session else {})).encode() + b"\0")
        while True:
            while b"\0" not in self.heard:
                more = os.read(self.listens.fileno(), 1 << 16)
                assert more, "the browser has ended"
                self.heard += more
            first, _, self.heard = self.heard.partition(b"\0")
            answer = json.loads(first)
            if answer.get("id") == self.count:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self.events.append(answer)

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)

    def ask(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, script: str, seconds: float = 90) -> Any:
        """The expression's value, as soon as it is true; a page that is still loading may lack what it names."""
        for _ in range(int(10 * seconds)):
            if value := self.ask(f"(() => {{ try {{ return {script} }} catch {{ return null }} }})()"):
                return value
            time.sleep(0.1)
        raise AssertionError(f"never true: {script}; the page says {self.ask('document.body.innerText')}")

    def errors(self) -> list[str]:
        """Exceptions in the page so far, and errors that it logged."""
        self.ask("0")
        thrown = [event["params"] for event in self.events if event.get("method") == "Runtime.exceptionThrown"]
        return [json.dumps(one) for one in thrown]

    def requested(self) -> list[str]:
        """The addresses that the page has asked for."""
        asked = [event["params"] for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [one["request"]["url"] for one in asked]

    def picture(self, file: Path) -> None:
        shown = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shown["data"]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        self.tells.close()
        self.listens.close()
