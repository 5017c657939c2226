"""The grader: verdicts, deadlines, threads. `tests/e2e` tests how its processes end."""

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from multiprocessing import Pipe

import pytest

from tests.conftest import REPOSITORY
from trl_ablate.errors import ConfigurationError
from trl_ablate.rewards import MathGrader
from trl_ablate.rewards.grading import pool as pool_module
from trl_ablate.rewards.grading.closed_form import approximate
from trl_ablate.rewards.grading.exact import cheap_verdict
from trl_ablate.rewards.grading.latex import tidy
from trl_ablate.rewards.grading.reading import as_number, read
from trl_ablate.rewards.grading.worker import Watcher

HANGS = r"9^{9^{9^{9}}}+1"


@pytest.fixture(scope="module")
def grader():
    with MathGrader(workers=2, timeout=5.0) as shared:
        yield shared


def equal_in_other_words(size: int) -> tuple[list[str], list[str]]:
    """Right answers that need algebra, each different, so that every one goes to a worker."""
    numbers = range(size)
    return [f"(x+{n})^2" for n in numbers], [f"x^2+{2 * n}x+{n * n}" for n in numbers]


def test_pairs(grader):
    """The cheap verdict is never more generous than the table, and knows equal texts."""
    text = (REPOSITORY / "tests" / "data" / "answer_pairs.txt").read_text(encoding="utf-8")
    lines = [line.split(" | ") for line in text.splitlines() if line and line[0] != "#"]
    pairs = [(answer.strip(), gold) for _, answer, gold in lines]
    assert len(set(pairs)) == len(pairs) >= 150
    verdicts = grader.grade(*map(list, zip(*pairs, strict=True)))
    for (kind, *_), (answer, gold), verdict in zip(lines, pairs, verdicts, strict=True):
        wanted = {"right": True, "wrong": False}[kind]
        assert verdict is wanted, (answer, gold)
        assert cheap_verdict(read(answer), read(gold)) in (wanted, None), (answer, gold)
        assert cheap_verdict(read(gold), read(gold)) is True, gold


def test_degenerate_batches(grader):
    assert grader.grade([], []) == []
    assert grader.grade([None, "", " ", "5"], ["5", "5", "5", ""]) == [False] * 4
    assert grader.grade(["", "  "], ["", ""]) == [True, True]
    with pytest.raises(ValueError, match="zip"):
        grader.grade(["5"], ["5", "6"])


def test_odd_text_is_wrong_and_harmless(grader):
    odd = ["\x00", "\ud800", "5\x00", "\udfff}{", "{", "}", "\\", "$", "=", ",", "%", "^\\circ"]
    for gold in ("5", "x^2-1"):
        assert grader.grade(odd, [gold] * len(odd)) == [False] * len(odd)
        assert grader.grade([gold] * len(odd), odd) == [False] * len(odd)
    assert grader.grade(odd, odd) == [True] * len(odd)


def test_signs_alone_are_wrong_without_a_worker():
    for text in ("=", "-", "+ -", "<", ".", "...", ": ;", "^"):
        for gold in ("5", "x^2-1", "-", "(1,2)"):
            assert cheap_verdict(read(text), read(gold)) is (text == gold), text


def test_long_answers_are_wrong_without_a_worker(grader):
    before = grader.restarts
    texts = ["1" * 200_000, "{" * 5000, "(" * 3000, r"\frac{" * 500, "x+" * 100_000]
    assert grader.grade(texts, ["5"] * len(texts)) == [False] * len(texts)
    assert grader.grade(["1" * 5000], ["1" * 5000]) == [True]
    assert grader.grade(["(x+1)^2"], ["x" * 5000]) == [None]  # cannot be decided
    assert grader.restarts == before


def test_light_spelling_joins_nothing():
    spellings = [
        ("1 2", "1 2"), ("1, 234", "1, 234"), ("(1, 2)", "(1,2)"), (r"1 \\ 2", r"1\\2"),
        (r"\dfrac 1 2", r"\frac{1}{2}"), (r"10,\!000", "10000"), ("3 .5", "3 .5"), (r"\(x\)", "x"),
        ("...", "..."),
    ]  # fmt: skip
    for text, tidied in spellings:
        assert tidy(text) == tidy(tidied) == tidied


def test_what_is_no_number():
    for text in ("1/0", "", ".", "-", "1,23", "1 23", "0x10", "1e400", "٣/0"):
        assert as_number(text) is None, text


def test_closed_forms():
    for text, value in (
        (r"\frac{3\sqrt{5}-1}{2}", 2.854101966),
        (r"2\pi", 6.283185307),
        (r"-\sqrt[3]{8}\cdot 2^{-1}", -1.0),
        ("3(4-1)/2", 4.5),
        ("(1+2i)^2", -3 + 4j),
    ):
        assert approximate(text) == pytest.approx(value, abs=1e-8), text
    none = ("2^{2000}", r"\frac{1}{0}", "(-8)^{1/3}", "2 3", "(1", r"3\frac{1}{2}", r"\sqrt{-4}")
    for text in ("", "1,2", "1#2", r"\sin x", *none):
        assert approximate(text) is None, text


@pytest.mark.sample(1)
@pytest.mark.parametrize(("on_timeout", "verdict"), [("none", None), ("zero", False)])
def test_a_hang_costs_its_item_only(on_timeout, verdict):
    answers, golds = equal_in_other_words(20)
    with MathGrader(workers=1, timeout=2.0, on_timeout=on_timeout) as grader:
        graded = grader.grade(
            [*answers[:10], HANGS, *answers[10:], HANGS], [*golds[:10], "5", *golds[10:], "5"]
        )
        assert graded == [True] * 10 + [verdict] + [True] * 10 + [verdict]
        # two items, one comparison
        assert (grader.timeouts, grader.ungraded, grader.restarts) == (2, 2, 1)
        assert grader.grade(["(x-1)(x+1)"], ["x^2-1"]) == [True]


@pytest.mark.parametrize("by_processor", [True, False])
@pytest.mark.skipif(sys.platform != "linux", reason="processor time of a process is Linux's")
def test_a_comparison_that_waits_for_the_processor_does_not_time_out(monkeypatch, by_processor):
    """Sleep stands for the load of others."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def work(seconds: float, sleeps: bool) -> float:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.01 * sleeps)
        return seconds

    pool, _ = Pipe()
    watcher = Watcher(pool, work, os.getppid(), 0.2, 2**40, by_processor)
    assert watcher._answered((0.6, True))[0] == (0.6 if by_processor else None)
    assert watcher._answered((5.0, False)) == (None, True, 1)
    watcher._end_fork()


@pytest.mark.sample(1)
@pytest.mark.parametrize("program", ["raise SystemExit(1)", "import time; time.sleep(60)"])
def test_workers_that_cannot_start_are_an_error(tmp_path, monkeypatch, program):
    script = tmp_path / "worker.py"
    script.write_text(program)
    monkeypatch.setattr(pool_module, "WORKER_SCRIPT", script)
    with (
        MathGrader(workers=1, start_timeout=1.0) as grader,
        pytest.raises(RuntimeError, match="ended before they were ready, or took longer than 1 s"),
    ):
        grader.grade(["(x-1)(x+1)"], ["x^2-1"])


@pytest.mark.slow
def test_an_interrupted_batch_leaves_no_stale_reports(monkeypatch):
    answers, golds = equal_in_other_words(10)
    with MathGrader(workers=1, timeout=5.0) as grader:
        grader.grade(["(x-1)(x+1)"], ["x^2-1"])
        calls, wait = count(1), pool_module.wait

        def interrupted_wait(*arguments):
            if next(calls) == 5:
                raise KeyboardInterrupt
            return wait(*arguments)

        monkeypatch.setattr(pool_module, "wait", interrupted_wait)
        with pytest.raises(KeyboardInterrupt):
            grader.grade(answers, golds)
        assert grader.grade([f"{a}+1" for a in answers], golds) == [False] * 10
        assert grader.grade(answers, golds) == [True] * 10


@pytest.mark.slow
def test_many_threads_at_once(grader):
    answers, golds = equal_in_other_words(8)

    def graded(number: int) -> list:
        return grader.grade([*answers, str(number)], [*golds, "3"])

    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(graded, range(6)))
    assert found == [[True] * 8 + [n == 3] for n in range(6)]


@pytest.mark.slow
def test_workers_survive_the_thread_that_started_them_but_no_close():
    grader = MathGrader(workers=1, timeout=5.0)
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(grader.grade, ["(x-1)(x+1)"], ["x^2-1"]).result() == [True]
    assert grader.grade(["(x-2)(x+2)"], ["x^2-4"]) == [True]
    assert grader.restarts == 0
    for _ in range(2):
        grader.close()
        with pytest.raises(RuntimeError, match="closed"):
            grader.grade(["5"], ["5"])


def test_settings_are_checked():
    for setting, message in (
        ({"workers": 0}, "workers=0 .*give 1 or more"),
        ({"timeout": 0.0}, "timeout=0.0 .*give seconds above 0"),
        ({"on_timeout": "retry"}, "on_timeout='retry'.*none, zero"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            MathGrader(**setting)
