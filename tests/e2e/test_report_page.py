"""The report's page in a real browser: headless Chromium, driven over its debugging pipe."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.synthetic_study import write_study
from trl_ablate.study.curves import read_curves
from trl_ablate.study.report import report_study

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SECONDS = 60.0

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no Chromium here to open the page in"
)


class Browser:
    """A headless Chromium with one page; commands and events of its DevTools protocol."""

    def __init__(self, profile: Path):
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        flags = [
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--disable-dev-shm-usage", f"--user-data-dir={profile}", "--remote-debugging-pipe",
        ]  # fmt: skip
        redirected = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            ["bash", "-c", redirected, "bash", str(CHROMIUM), *flags, "about:blank"],
            pass_fds=(to_browser, from_browser), stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._unread, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        pages = self.send("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in pages if target["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command's result; events that come before it are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self.events.append(answer)
        raise TimeoutError(method)

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)
        while self.evaluate("document.readyState") != "complete":
            time.sleep(0.05)

    def evaluate(self, expression: str) -> Any:
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(20)
        os.close(self._write)
        os.close(self._read)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            chunk = os.read(self._read, 65536)
            assert chunk, "the browser has gone"
            self._unread += chunk
        line, self._unread = self._unread.split(b"\0", 1)
        return json.loads(line)


@pytest.fixture
def browser(tmp_path) -> Iterator[Browser]:
    browser = Browser(tmp_path / "profile")
    yield browser
    browser.close()


@pytest.fixture
def page(tmp_path) -> Path:
    arms = {"grpo": {"top": 0.8}, "weak": {"top": 0.4}, "broken": {"top": 0.8, "collapse": 8}}
    plan, store = write_study(tmp_path / "runs", arms)
    curves = tmp_path / "published.csv"
    rows = [f"elsewhere,eval/reward,{step},{0.1 + step / 20}" for step in range(10)]
    curves.write_text("\n".join(["run_name,metric,step,value", *rows]))
    report_study(plan, store, tmp_path / "study.yaml", tmp_path / "out", read_curves(curves))
    return tmp_path / "out" / "report.html"


def cells(browser: Browser, table: int, column: int) -> list[str]:
    return browser.evaluate(
        f"[...document.querySelectorAll('table')[{table}].tBodies[0].rows]"
        f".map(row => row.cells[{column}].textContent)"
    )


def click(browser: Browser, table: int, column: int) -> None:
    browser.evaluate(
        f"document.querySelectorAll('table')[{table}]"
        f".querySelectorAll('th button')[{column}].click()"
    )


def test_the_page_in_a_browser(browser, page):
    browser.open(page.as_uri())
    widths = browser.evaluate("[...document.images].map(i => i.complete && i.naturalWidth)")
    assert len(widths) == 2 and min(widths) > 500
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")

    assert cells(browser, 0, 0) == ["grpo", "weak", "broken"]  # best first
    click(browser, 0, 2)
    highest_first = [float(cell.split()[0]) for cell in cells(browser, 0, 2)]
    assert highest_first == sorted(highest_first, reverse=True)
    click(browser, 0, 2)
    assert cells(browser, 0, 0) == ["broken", "weak", "grpo"]
    click(browser, 0, 0)
    click(browser, 0, 0)
    assert cells(browser, 0, 0) == ["broken", "grpo", "weak"]  # text sorts, too
    click(browser, 1, 2)  # differences have signs and intervals
    assert cells(browser, 1, 0) == ["weak", "broken"]
    marked = browser.evaluate("[...document.querySelectorAll('.worse')].map(e => e.textContent)")
    assert marked == ["worse", "worse"]

    browser.evaluate("1")  # lets the last events come in
    requests = [
        event["params"]["request"]["url"]
        for event in browser.events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert page.as_uri() in requests  # the recording works
    assert [url for url in requests if not url.startswith("data:")] == [page.as_uri()]
    methods = {event["method"] for event in browser.events}
    assert not methods & {"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"}
