"""The report's page in a real browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import CHROMIUM, Browser
from tests.support.synthetic_study import write_study
from trl_ablate.study.report.foreign_runs import read_curves
from trl_ablate.study.report.making import report_study

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here to open the page in"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    arms = {"grpo": {"top": 0.8}, "weak": {"top": 0.4}, "broken": {"top": 0.8, "collapse": 8}}
    plan, store = write_study(folder / "runs", arms)
    curves = folder / "published.csv"
    rows = [f"elsewhere,eval/reward,{step},{0.1 + step / 20}" for step in range(10)]
    curves.write_text("\n".join(["run_name,metric,step,value", *rows]))
    report_study(plan, store, folder / "study.yaml", folder / "out", read_curves(curves))
    return folder / "out" / "report.html"


@pytest.fixture
def browser(tmp_path) -> Iterator[Browser]:
    browser = Browser(tmp_path / "profile")
    yield browser
    browser.close()


def cells(browser: Browser, table: int, column: int) -> list[str]:
    return browser.evaluate(
        f"[...document.querySelectorAll('table')[{table}].tBodies[0].rows]"
        f".map(row => row.cells[{column}].textContent)"
    )


def click(browser: Browser, table: int, column: int, times: int = 1) -> None:
    button = f"document.querySelectorAll('table')[{table}].querySelectorAll('th button')[{column}]"
    for _ in range(times):
        browser.evaluate(f"{button}.click()")


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
    click(browser, 1, 3)  # differences have signs and intervals
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


def test_the_page_on_a_phone(browser, page):
    """Text fits the width; wide pictures and tables scroll by themselves, and these still sort."""
    browser.size(390, 844)
    browser.open(page.as_uri())
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert min(browser.evaluate("[...document.images].map(i => i.clientWidth)")) > 600  # legible
    assert browser.evaluate("[...document.images].every(i => i.closest('.wide') && i.alt)")
    assert browser.evaluate("parseFloat(getComputedStyle(document.body).fontSize)") >= 16
    widest = "[...document.querySelectorAll('.wide')].map(e => e.scrollWidth - e.clientWidth)"
    assert max(browser.evaluate(widest)) > 0
    click(browser, 0, 0, times=2)
    assert cells(browser, 0, 0) == ["broken", "grpo", "weak"]  # text sorts, too
