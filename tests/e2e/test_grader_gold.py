"""The grader at full size: all reference answers, hostile batches, fuzzing, speed, two processes.

Numbers that a test measures are printed; run with `-s` to see them.
"""

import json
import os
import random
import re
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import SHARED_DATA
from tests.e2e.test_grader_processes import descendants
from trl_ablate.prompts.templates import TEMPLATES
from trl_ablate.rewards import MathGrader
from trl_ablate.rewards.functions import score_batch
from trl_ablate.rewards.grading.reading import read

pytestmark = pytest.mark.slow

ROWS = 21_292

WRITE = {
    "r1_zero": "working </think> <answer> {} </answer>",
    "question_only": r"working, so it is $\boxed{{{}}}$.",
    "reasoning_xml": "<reasoning>\nworking\n</reasoning>\n<answer>\n{}\n</answer>",
    "think_xml": "<think>working</think>\n<answer>{}</answer>",
    "last_number": "of 3 and 4 it is {}",
}


def say(text: str) -> None:
    sys.stdout.write(f"\n    {text}")


@pytest.fixture(scope="module")
def golds() -> list[str]:
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no MATH and GSM8K at {SHARED_DATA}")
    names = "math/train", "math/validation", "gsm8k/train", "gsm8k/test"
    files = [(SHARED_DATA / f"{name}.jsonl").open(encoding="utf-8") for name in names]
    rows = [json.loads(line) for file in files for line in file]
    assert len(rows) == ROWS
    return [row["answer"].rsplit("####", 1)[-1].strip() for row in rows]


@pytest.fixture(scope="module")
def grader():
    with MathGrader(workers=2, timeout=5.0) as shared:
        shared.grade(["(x-1)(x+1)"], ["x^2-1"])
        yield shared


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_reference_answer_scores_in_full(grader, golds, template):
    if template == "last_number":
        golds = [gold for gold in golds if re.fullmatch(r"-?\d+(\.\d+)?", gold)]
        assert len(golds) > 10_000
    start = time.monotonic()
    written = [WRITE[template].format(gold) for gold in golds]
    scores = score_batch(template, written, golds, grader=grader)
    say(f"{template}: {len(golds)} rows in {time.monotonic() - start:.2f} s")
    full = 3.0 if template.endswith("xml") else 1.0
    short = [gold for gold, each in zip(golds, scores, strict=True) if each["reward"] != full]
    assert short == []


IN_UNICODE = (
    (r"\\d?frac\{1\}\{2\}", "½"), (r"\\pi(?![a-z])", "π"), (r"\\infty", "∞"), (r"\\cup", "∪"),
    (r"\\le(?:q|(?![a-z]))", "≤"), (r"\\sqrt\{(\d+|[a-z])\}", r"√\1"),
    (r"\\sqrt\{([^{}()]*)\}", r"√(\1)"),
    (r"\\times", "×"), (r"\^\{2\}|\^2", "²"), (r"\^\{?-1\}?", "⁻¹"),
)  # fmt: skip


def test_reference_answers_in_unicode_are_right(grader, golds):
    written = {gold: gold for gold in golds}
    for pattern, sign in IN_UNICODE:
        written = {gold: re.sub(pattern, sign, text) for gold, text in written.items()}
    pairs = [(text, gold) for gold, text in written.items() if text != gold]
    verdicts = grader.grade(*map(list, zip(*pairs, strict=True)))
    say(f"{sum(map(bool, verdicts))} of {len(pairs)}")
    assert len(pairs) > 800 and verdicts.count(True) > 0.99 * len(pairs)


def test_another_rows_answer_is_wrong(grader, golds):
    """Answers drawn from another row. The few that are right are equal, and each is listed here."""
    others = golds[:]
    random.Random(0).shuffle(others)
    start = time.monotonic()
    verdicts = grader.grade(others, golds)
    say(f"{len(golds)} drawn answers in {time.monotonic() - start:.1f} s")
    assert None not in verdicts
    right = {
        (other, gold)
        for other, gold, verdict in zip(others, golds, verdicts, strict=True)
        if verdict and read(other).tidied != read(gold).tidied
    }
    say(f"right in other words: {sorted(right)}")
    assert right == EQUAL_IN_OTHER_WORDS


# A unit, a degree sign, a percent sign or `x=` on one side only; looked at one by one.
EQUAL_IN_OTHER_WORDS = {
    ("12", r"12\text{ square units}"),
    ("20", r"20\%"),
    ("3", "q = 3"),
    (r"15^\circ", "15"),
    (r"25 \text{ ft}", "25"),
    ("b=0", "0"),
}


HOSTILE = [
    r"10^{10^{10}}", r"9^{9^{9^{9}}}", r"2^{2^{2^{2^{2^{2}}}}}",
    "1000000!", "5000000!+x", "((10!)!)!",
    r"\sum_{n=1}^{1000000000} \frac{1}{n}", r"\sum_{n=1}^{10^9} n^n", r"\prod_{n=1}^{10^9} n",
    r"\int_0^1 \frac{\sin(x^{x^x})}{x^{x}} dx", r"\binom{10^{9}}{5\cdot 10^{8}}",
    r"x^{999999999}(x+1)^{999999999}", r"(x+1)^{100000}(x+2)^{100000}",
    r"\sqrt[999999999]{10^{999999999}+x}", r"7^{7^{7^{7}}}\bmod 10",
    "(" * 3000, "{" * 5000, "5" * 200_000, "x+" * 100_000, r"\frac{" * 30_000,
    r"\frac{\frac{" * 80 + "1" + "}{2}" * 80, "5\x00", "\ud800\udfff5", r"\boxed{" * 100,
    "[" * 500 + "5" + "]" * 500, r"\left(\sqrt{" * 35 + "x" + r"}\right)" * 35,
]  # fmt: skip
"""Texts that hang, starve or break a parser, as a model might come to write them."""


def honest_answers(count: int) -> list[tuple[str, str, bool]]:
    """Answers to MATH-like questions, half of them right, none the same text as the reference."""
    pairs = []
    for n in range(2, 2 + count // 4):
        pairs += [
            (rf"\frac{{{n}}}{{{2 * n}}}", "0.5", True),
            (f"(x+{n})^2", f"x^2+{2 * n}x+{n * n}", True),
            (f"{n + 1}", f"{n}", False),
            (rf"{n}\sqrt{{2}}", rf"{n}\sqrt{{3}}", False),
        ]
    return pairs


def hostile_batch() -> tuple[tuple[str, ...], tuple[str, ...], tuple[bool | None, ...]]:
    """256 answers, every tenth hostile; the expected verdict of a hostile one is None: any."""
    honest, hostile = iter(honest_answers(232)), iter(HOSTILE)
    rows = [(next(hostile), "x^2+5", None) if n % 10 == 4 else next(honest) for n in range(256)]
    answers, golds, expected = zip(*rows, strict=True)
    return answers, golds, expected


def test_a_hostile_batch():
    """Two seconds, as an honest comparison may wait for a core of a busy machine."""
    answers, golds, expected = hostile_batch()
    timeout, hostile = 2.0, expected.count(None)
    assert (len(answers), hostile) == (256, 26)
    with MathGrader(workers=2, timeout=timeout) as grader:
        grader.grade(["(x-1)(x+1)"], ["x^2-1"])
        start = time.monotonic()
        verdicts = grader.grade(answers, golds)
        took = time.monotonic() - start
        processes = descendants(grader)
        say(f"{took:.1f} s, {grader.timeouts} timeouts, {grader.restarts} restarts")
    assert took < 3 * timeout * hostile / 2 + 2
    for answer, verdict, wanted in zip(answers, verdicts, expected, strict=True):
        assert verdict is not True if wanted is None else verdict is wanted, answer[:50]
    assert not any(Path(f"/proc/{pid}").exists() for pid in processes)


def resident_mib(pids: list[int]) -> float:
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.long
def test_memory_is_flat_over_fifty_hostile_batches():
    """A short deadline, so that fifty batches take minutes; each batch has answers of its own."""
    answers, golds, expected = hostile_batch()
    sizes: list[tuple[float, float]] = []
    with MathGrader(workers=2, timeout=0.1) as grader:
        for number in range(50):
            ours = [
                f"{a}+{number}" if wanted is None else a
                for a, wanted in zip(answers, expected, strict=True)
            ]
            grader.grade(ours, golds)
            sizes.append((resident_mib([os.getpid()]), resident_mib(grader.pids)))
        assert len(descendants(grader)) <= 4
        say(f"{grader.timeouts} timeouts, {grader.restarts} restarts")
    say(f"parent MiB {sizes[4][0]:.0f} -> {sizes[-1][0]:.0f}")
    say(f"watchers MiB {sizes[4][1]:.0f} -> {sizes[-1][1]:.0f}")
    assert sizes[-1][0] - sizes[4][0] < 8
    assert sizes[-1][1] - sizes[4][1] < 8


COMMANDS = [
    *("frac", "sqrt", "pi", "cdot", "times", "left", "right", "text", "infty", "cup", "pm", "circ"),
    *("sum", "int", "prod", "log", "ln", "sin", "binom", "begin", "end", "boxed", "in", "mod"),
]
TOKENS = [
    *"0123456789xyzABCei+-*/^_=<>()[]{}|,.;:!%$ \x00\ud800é٣√½π²₇⁻\n",
    *("\\" + command for command in COMMANDS),
    *("{1}{2}", "{x}", "\\\\", "&", "{pmatrix}", "^{2}", "_{3}"),
]
latex_like = st.lists(st.sampled_from(TOKENS), max_size=40).map("".join)
texts = st.one_of(latex_like, latex_like, st.text(max_size=200))
FUZZED_ANSWERS = 10_000
PER_EXAMPLE = 40


@pytest.fixture(scope="module")
def fuzzed_grader():
    with MathGrader(workers=2, timeout=0.5) as shared:
        yield shared


@settings(
    max_examples=FUZZED_ANSWERS // PER_EXAMPLE,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    database=None,
)
@given(
    st.lists(st.tuples(texts, texts), min_size=PER_EXAMPLE, max_size=PER_EXAMPLE),
    st.sampled_from(sorted(TEMPLATES)),
)
def test_fuzzing_neither_raises_nor_hangs(fuzzed_grader, pairs, template):
    """The answer, the reference and the text around the answer are arbitrary."""
    answers, golds = zip(*pairs, strict=True)
    start = time.monotonic()
    verdicts = fuzzed_grader.grade(answers, golds)
    assert time.monotonic() - start < 0.5 * len(pairs) + 10
    assert all(verdict in (True, False, None) for verdict in verdicts)
    written = [WRITE[template].format(answer) for answer in answers]
    for each in score_batch(template, [*answers, *written], [*golds, *golds], grader=fuzzed_grader):
        assert each["format_reward"] in (0.0, 1.0)
        assert each["answer_reward"] in (None, 0.0, 1.0, 2.0)
