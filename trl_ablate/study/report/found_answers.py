"""Answers of several studies in words, from their `report.json`. Pure but for reading the files.

A verdict is never written by hand: every sentence is chosen by the verdict in the JSON.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from trl_ablate.errors import ConfigurationError, nearest
from trl_ablate.run.json_files import read_object
from trl_ablate.study.definition import load_study
from trl_ablate.study.questions_list import Question
from trl_ablate.study.report.numbers import MIXED, NOTHING, number, signed, within
from trl_ablate.study.report.verdicts import HEADS, MOSTLY, waits
from trl_ablate.study.two_part import ALPHA, benjamini_hochberg
from trl_ablate.study.verdict import Verdict
from trl_ablate.study.xray_file import XRAY, KnownXray, read_xray

Json = Mapping[str, Any]

FAILS_PAGE = " ‡"
"""Marks a claim that fails the correction over all claims of the page."""


@dataclass(frozen=True)
class ArmFound:
    """The answer on one arm."""

    arm: str
    words: str
    against: str
    kind: Verdict
    """The verdict, or `collapse` where most runs of the arm collapsed."""
    numbers: Json
    """Its entries in `arms` and in `details` of `report.json`."""
    xray: KnownXray | None
    """If it compares the arm with the same one as its runs."""
    marks: str = ""

    @property
    def difference(self) -> str:
        of = self.numbers
        if of["difference"] is None:
            return NOTHING
        return within(of["difference"], of["low"], of["high"]) + self.marks

    @property
    def limits(self) -> tuple[list[float], bool] | None:
        """Low end, mean and high end of the difference where runs succeed, or else over all runs,
        and whether it is that; None without an interval."""
        of, known = self.numbers, self.numbers.get("all_runs")
        if of["low"] is not None:
            return [of["low"], of["difference"], of["high"]], False
        if not known or known[1] is None:
            return None
        mean, low, high = known
        return [low, mean, high], True

    @property
    def over_all(self) -> str:
        """The difference over all runs, those that fail too, where runs are judged in two parts."""
        known = self.numbers.get("all_runs")
        return within(*known) if known else NOTHING

    @property
    def verdict(self) -> str:
        """Of an equivalent arm, with its margin."""
        within = f" within {self.numbers['equivalence_margin'] or 0:g}"
        return self.kind + within * (self.kind is Verdict.EQUIVALENT)

    @property
    def successes(self) -> str:
        """How many runs succeed; empty where runs are paired."""
        if not self.numbers.get("successes"):
            return ""
        (k, n), (other_k, other_n) = self.numbers["successes"]
        return f"{k} of {n} runs succeed, {other_k} of {other_n} of {self.against}"

    @property
    def runs(self) -> str:
        """How many runs say so: pairs, or those that succeed, of the arm and of its reference."""
        if self.successes:
            return ", ".join(f"{k} of {n}" for k, n in self.numbers["successes"])
        pairs = self.numbers["pairs"]
        return f"{pairs} pair{'s' * (pairs != 1)}"

    @property
    def in_short(self) -> str:
        disagree = ", two tests disagree" * bool(self.numbers["disagreement"])
        return f"{self.words} {self.difference} ({self.runs}{disagree})"

    @property
    def sentence(self) -> str:
        of, seeds = self.numbers, self.numbers["pairs"]
        collapsed, ended = of["collapsed"]
        head = HEADS[self.kind].format(
            arm=self.words, other=self.against, collapsed=collapsed, ended=ended,
            margin=number(of["equivalence_margin"]),
        )  # fmt: skip
        numbers = f"{self.difference}, " * (of["difference"] is not None)
        numbers += f"{seeds} seed{'s' * (seeds != 1)}"
        numbers += f"; {self.successes}" * bool(self.successes)
        numbers += f" against {self.against}" * (self.kind in (Verdict.COLLAPSE, Verdict.TOO_FEW))
        words = f"{head} ({numbers}){waits(self.kind, of['next_look'], of['disagreement'])}."
        return f"{words[:1].upper()}{words[1:]}"

    @property
    def estimate(self) -> str:
        return f"{self.verdict}, {self.difference} ({self.runs})"

    def kept(self, others: Sequence[Any]) -> str:
        """Whether the others have the same verdict; one that is open says nothing."""
        kinds = {self.kind, *(other.kind for other in others)}
        if sum(kind.is_answer for kind in kinds) > 1:
            return "no"
        is_kept = others and kinds == {self.kind} and self.kind.is_answer
        return "yes" if is_kept else "cannot say"

    @property
    def xray_kind(self) -> str:
        """What the X-ray says where the two are farthest apart, without its details: `reweights`.
        Gradients at a point say little of arms that take several steps from it, so these are a kind
        of their own."""
        if self.xray is None or not self.xray.same_steps(self.arm):
            return "another number of optimizer steps per batch"
        points = self.xray.arms[self.arm]
        far = min(points, key=lambda at: math.inf if at.cosine is None else at.cosine)
        return re.split(r",| (?:sign|length|difficulty)", far.verdict)[0]

    @property
    def expected(self) -> str:
        """A verdict, or the size of the difference."""
        given = self.numbers["expected"]
        return signed(given) if isinstance(given, (int, float)) else given or NOTHING


class CellsFound(NamedTuple):
    """How far a cell of a factorial study ends above another. An average over cells of which some
    are destroyed would mislead."""

    words: str
    estimate: str


@dataclass(frozen=True)
class Found:
    """A question with what its study found; without runs, nothing."""

    asked: Question
    arms: Sequence[ArmFound] = ()
    effects: Sequence[str | None] | None = None
    """The sentences of the effects of a factorial study that differ, largest effect first."""
    cells: Sequence[CellsFound] = ()
    worlds: Sequence["Found"] = ()
    """The same question in each of its worlds, if it has some."""
    missing: Sequence[str] = ()
    """Arms in words of which no run has ended, where others have."""

    @property
    def is_run(self) -> bool:
        return bool(self.arms) or self.effects is not None

    @property
    def is_main(self) -> bool:
        """Whether it stands first, or its study is judged in two parts and follows no other up."""
        in_two_parts = any(arm.successes for arm in self.arms)
        return bool(self.asked.overturned_by) or in_two_parts and not self.asked.aside

    @property
    def headline(self) -> ArmFound | None:
        return self.arms[0] if self.arms else None

    @property
    def beside(self) -> str:
        """The reason for the headline."""
        why = self.asked.why.get(self.headline.kind, "") if self.headline else ""
        return f" {why}" if why else ""

    @property
    def in_brief(self) -> str:
        """The headline alone, or the largest effect."""
        if self.headline:
            return self.headline.in_short
        sentence = next(filter(None, self.effects or ()), "no effect is distinguishable")
        return sentence.partition(". ")[0]

    @property
    def not_run(self) -> str:
        missing = f" {'; '.join(self.missing)}" * bool(self.is_run and self.missing)
        return f"{self.asked.question}{missing} ({self.asked.study})"

    @property
    def over_worlds(self) -> Iterator[tuple[str, list[ArmFound | CellsFound | None], str]]:
        """The arms, or differences of cells: name, in each world, whether an arm keeps its verdict,
        which is not known of cells."""
        each = [{of.words: of for of in (*world.arms, *world.cells)} for world in self.worlds]
        for words, first in each[0].items():
            known = [found.get(words) for found in each]
            others = [other for other in known[1:] if other]
            yield words, known, first.kept(others) if isinstance(first, ArmFound) else ""


def read_report(folder: Path) -> Json | None:
    """The `report.json` in a folder; None if there is none."""
    file = folder / "report.json"
    return read_object(file) if file.is_file() else None


def find(rows: Sequence[Question], folder: Path) -> list[Found]:
    """The answers to the questions, from the reports of the studies in `folder`."""
    return _marked([found_of(row, folder) for row in rows])


def _marked(found: Sequence[Found]) -> list[Found]:
    """The answers; those claims are marked that fail Benjamini and Hochberg's correction over all
    arms of all answers. Its p-values hold over looks and parts."""
    kinds = ("p_difference", "p_equivalent")
    tested = {
        (row.asked.study, arm.arm, kind): arm.numbers[kind]
        for row in answers(found)
        for arm in row.arms
        for kind in kinds
        if kind in arm.numbers
    }
    corrected = dict(zip(tested, benjamini_hochberg([*tested.values()]), strict=True))

    def fails(study: str, arm: ArmFound) -> bool:
        claim = (study, arm.arm, kinds[arm.kind is Verdict.EQUIVALENT])
        return arm.kind.is_answer and corrected.get(claim, 0.0) > ALPHA

    def marked(row: Found) -> Found:
        study = row.asked.study
        arms = [replace(a, marks=a.marks + FAILS_PAGE * fails(study, a)) for a in row.arms]
        return replace(row, arms=arms, worlds=[*map(marked, row.worlds)])

    return [*map(marked, found)]


def answers(found: Sequence[Found]) -> list[Found]:
    """The questions with every study once: in each world but the first, which has a question of its
    own, and without those that are replaced."""
    rows = [each for row in found for each in (row.worlds[1:] or [row])]
    return [row for row in rows if not row.asked.replaced_by]


def with_xray(found: Sequence[Found]) -> list[tuple[str, ArmFound]]:
    """The arms that an X-ray compares with the same arm as the runs, each pair once; and study."""
    pairs = {}
    for row in found:
        for arm in row.arms:
            if arm.xray:
                pairs.setdefault((arm.arm, arm.numbers["against"]), (row.asked.study, arm))
    return [*pairs.values()]


def found_of(asked: Question, folder: Path) -> Found:
    """The answers to one question, without marks over several."""
    if asked.worlds:
        each = [
            replace(asked, question=f"{asked.question} {world}", study=study, worlds={})
            for study, world in asked.worlds.items()
        ]
        return Found(asked, worlds=[found_of(one, folder) for one in each])
    report = read_report(folder / asked.study)
    if report is None:
        return Found(asked)
    if report["effects"]:
        if not all(cell["pairs"] for cell in report["arms"].values()):
            return Found(asked)
        pairs = zip(report["effects"], report["details"]["sentences"], strict=True)
        strong = [(of, text) for of, text in pairs if Verdict(of["verdict"]).differs]
        strong.sort(key=lambda pair: -abs(pair[0]["estimate"]))
        cells = [_cells(words, pair, report, asked.study) for words, pair in asked.cells.items()]
        return Found(asked, effects=[text for _, text in strong], cells=cells)
    names = asked.arms or {name: name for name in report["arms"]}
    known = [name for name in names if name in report["arms"]]
    unknown = names.keys() - {*report["arms"], report.get("reference")}
    if unknown and asked.part != "carry":  # an arm may be in some worlds alone
        file = folder / asked.study / "study.yaml"
        own = {arm.name.partition("--")[0] for arm in load_study(file).arms}
        for name in unknown - own:
            raise ConfigurationError(f"{file} has no arm '{name}'{nearest(name, own)}")
    seen = [name for name in known if report["arms"][name]["pairs"]]
    xray, words = read_xray(folder / asked.study / XRAY), {**names, **asked.names}
    arms = [_arm(name, words, report, xray) for name in seen]
    return Found(asked, arms, missing=[names[name] for name in known if name not in seen])


def _cells(words: str, pair: Sequence[str], report: Json, study: str) -> CellsFound:
    means = report["details"]["means"]
    if len(pair) != 2 or not {*pair} <= means.keys():
        raise ConfigurationError(
            f"cells: '{words}' has {', '.join(pair)}; name two cells of {study}, such as "
            f"{min(means)}"
        )
    compared = next(report["arms"][cell] for cell in pair if cell in report["arms"])
    difference = signed(means[pair[0]] - means[pair[1]])
    return CellsFound(words, f"{difference} ({compared['collapsed'][1]})")


def _arm(name: str, words: Mapping[str, str], report: Json, xray: KnownXray | None) -> ArmFound:
    details = report["details"]
    numbers = {**report["arms"][name], **details["arms"][name]}
    against, (k, n) = numbers["against"], numbers["collapsed"]
    most = "successes" not in numbers and k > MOSTLY * n
    collapses = most and numbers.get("collapses", True)
    is_compared = xray and {name, against} <= xray.arms.keys() and xray.against(name) == against
    return ArmFound(
        arm=name,
        words=words[name],
        against=words.get(against, against),
        kind=Verdict.COLLAPSE if collapses else Verdict(numbers["verdict"]),
        numbers=numbers,
        xray=xray if is_compared else None,
        marks=MIXED * bool({name, against} & {*details["mixed"]}),
    )
