"""The grader at full size: all reference answers, hostile batches, fuzzing."""

import os
import random
import re
import time

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import SHARED_DATA
from tests.e2e.test_grader_processes import descendants
from trl_ablate.prompts.templates import TEMPLATES
from trl_ablate.rewards import MathGrader
from trl_ablate.rewards.functions import score_batch
from trl_ablate.rewards.grading.reading import read
from trl_ablate.run.json_files import read_jsonl

pytestmark = pytest.mark.slow

ROWS = 21_292
SPLITS = ("math/train", "math/validation", "gsm8k/train", "gsm8k/test")
WRITE = {
    "r1_zero": "working </think> <answer> {} </answer>",
    "question_only": r"working, so it is $\boxed{{{}}}$.",
    "reasoning_xml": "<reasoning>\nworking\n</reasoning>\n<answer>\n{}\n</answer>",
    "think_xml": "<think>working</think>\n<answer>{}</answer>",
    "last_number": "of 3 and 4 it is {}",
}


@pytest.fixture(scope="module")
def golds() -> list[str]:
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no MATH and GSM8K at {SHARED_DATA}")
    rows = [row for name in SPLITS for row in read_jsonl(SHARED_DATA / f"{name}.jsonl")]
    assert len(rows) == ROWS
    return [row["answer"].rsplit("####", 1)[-1].strip() for row in rows]


@pytest.fixture(scope="module")
def grader():
    with MathGrader(workers=2, timeout=5.0) as shared:
        yield shared


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_reference_answer_scores_in_full(grader, golds, template):
    if template == "last_number":
        golds = [gold for gold in golds if re.fullmatch(r"-?\d+(\.\d+)?", gold)]
        assert len(golds) > 10_000
    written = [WRITE[template].format(gold) for gold in golds]
    scores = score_batch(template, written, golds, grader=grader)
    full = 3.0 if template.endswith("xml") else 1.0
    short = [gold for gold, each in zip(golds, scores, strict=True) if each["reward"] != full]
    assert short == []


# A unit, a degree sign, a percent sign or `x=` on one side only; looked at one by one.
EQUAL_IN_OTHER_WORDS = {
    ("12", r"12\text{ square units}"),
    ("20", r"20\%"),
    ("3", "q = 3"),
    (r"15^\circ", "15"),
    (r"25 \text{ ft}", "25"),
    ("b=0", "0"),
}


def test_another_rows_answer_is_wrong(grader, golds):
    """Answers drawn from another row. The few that are right are equal, and each is listed."""
    others = golds[:]
    random.Random(0).shuffle(others)
    verdicts = grader.grade(others, golds)
    assert None not in verdicts
    right = {(a, b) for a, b, found in zip(others, golds, verdicts, strict=True) if found}
    assert {(a, b) for a, b in right if read(a).tidied != read(b).tidied} == EQUAL_IN_OTHER_WORDS


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


@pytest.fixture(scope="module")
def hostile_batch():
    """Hostile answers, each behind nine of MATH-like questions: answers, references, verdicts. That
    of a hostile one is None: any but True."""
    rows: list[tuple[str, str, bool | None]] = []
    for n, hostile in enumerate(HOSTILE, 2):
        for m in (n, n + 100, n + 200):
            rows += [
                (f"(x+{m})^2", f"x^2+{2 * m}x+{m * m}", True),
                (f"{m + 1}", f"{m}", False),
                (rf"{m}\sqrt{{2}}", rf"{m}\sqrt{{3}}", False),
            ]
        rows.append((hostile, "x^2+5", None))
    return tuple(zip(*rows, strict=True))


def test_a_hostile_batch(hostile_batch):
    answers, golds, expected = hostile_batch
    with MathGrader(workers=2, timeout=1.0) as grader:
        grader.grade(["(x-1)(x+1)"], ["x^2-1"])
        start = time.monotonic()
        verdicts = grader.grade(answers, golds)
        took, processes = time.monotonic() - start, descendants(grader)
    assert took < 3 * 1.0 * len(HOSTILE) / 2 + 2
    for answer, verdict, wanted in zip(answers, verdicts, expected, strict=True):
        assert verdict is not True if wanted is None else verdict is wanted, answer[:50]
    assert not any(map(psutil.pid_exists, processes))


def resident_mib(pids: list[int]) -> float:
    return sum(psutil.Process(pid).memory_info().rss for pid in pids) / 2**20


@pytest.mark.long
def test_memory_is_flat_over_fifty_hostile_batches(hostile_batch):
    """A short deadline, so that fifty batches take minutes; each batch has answers of its own."""
    answers, golds, expected = hostile_batch
    sizes: list[tuple[float, float]] = []
    with MathGrader(workers=2, timeout=0.1) as grader:
        for number in range(50):
            pairs = zip(answers, expected, strict=True)
            grader.grade([f"{a}+{number}" if each is None else a for a, each in pairs], golds)
            sizes.append((resident_mib([os.getpid()]), resident_mib(grader.pids)))
        assert len(descendants(grader)) <= 4
    assert all(last - early < 8 for early, last in zip(sizes[4], sizes[-1], strict=True)), sizes


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
FUZZED_ANSWERS, PER_EXAMPLE = 4_000, 40


@pytest.fixture(scope="module")
def fuzzed_grader():
    with MathGrader(workers=2, timeout=0.5) as shared:
        yield shared


@settings(
    max_examples=FUZZED_ANSWERS // PER_EXAMPLE,
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
