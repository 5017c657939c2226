"""Answers of several studies in words, from their `report.json`. Pure but for reading the files.

A verdict is never written by hand: every sentence is chosen by the verdict in the JSON.
"""

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trl_ablate.run.json_files import read_object
from trl_ablate.study.decision import BETTER, EQUIVALENT, NOT_DECIDED, WORSE
from trl_ablate.study.questions_list import Question
from trl_ablate.study.report.numbers import MIXED, NOTHING, number, within
from trl_ablate.study.report.verdicts import MOSTLY
from trl_ablate.study.report.xray_section import place_of

Json = Mapping[str, Any]

COLLAPSE = "collapse"
MATTERS, DOES_NOT = (BETTER, WORSE, COLLAPSE), (EQUIVALENT, NOT_DECIDED)
AGREES, DOES_NOT_AGREE, CANNOT_SAY = "agrees", "does not", "cannot say"
AT_1_5B = {"better": BETTER, "worse": WORSE, "collapse": WORSE, "equal": EQUIVALENT}
ONLY_RESCALES = "only rescales"
OTHER_STEPS = "another number of optimizer steps per batch"
XRAY = "xray.json"
"""Beside the `study.yaml`, if there is an X-ray of the study."""


@dataclass(frozen=True)
class XrayFound:
    """What the X-ray says of an arm, against the arm that its runs are compared with."""

    verdict: str
    """At the first point; with the others, where they say something else."""
    kind: str
    """Where the two are farthest apart, without its details: `reweights`. Gradients at a point say
    little of arms that take several steps from it, so these are a kind of their own."""
    distance: float | None
    """1 - cosine of the mean gradients, averaged over the points."""
    same_steps: bool
    """Whether both take as many optimizer steps per rollout batch."""


@dataclass(frozen=True)
class ArmFound:
    """The answer on one arm."""

    arm: str
    words: str
    against: str
    kind: str
    """The verdict, or `collapse` where most runs of the arm collapsed."""
    numbers: Json
    """Its entry among the arms of `report.json`."""
    details: Json
    xray: XrayFound | None
    is_mixed: bool

    @property
    def difference(self) -> str:
        of = self.numbers
        if of["difference"] is None:
            return NOTHING
        return within(of["difference"], of["low"], of["high"]) + MIXED * self.is_mixed

    @property
    def disagreement(self) -> str | None:
        """Why a difference that the t test finds is no verdict."""
        return self.details.get("disagreement")

    @property
    def does_not_differ(self) -> bool:
        """Whether the runs bound the difference, or find none."""
        return self.kind in DOES_NOT and not self.disagreement

    @property
    def sentence(self) -> str:
        name, other, seeds = self.words, self.against, self.numbers["pairs"]
        shown = f"{self.difference}, {seeds} seed{'s' * (seeds != 1)}"
        bound = number(self.details["detectable"])
        match self.kind:
            case "collapse":
                k, n = self.numbers["collapsed"]
                words = f"{name} collapses in {k} of {n} runs ({shown} against {other})"
            case "equivalent":
                margin = number(self.numbers["equivalence_margin"])
                words = f"{name} is equivalent to {other} within {margin} ({shown})"
            case "not decided":
                why = self.disagreement or f"a difference above {bound} would have been seen"
                words = f"{name} is not decided against {other} ({shown}): {why}"
            case "undecided":
                words = (
                    f"{name} is undecided against {other} ({shown}); the next look is at "
                    f"{self.details['next_look']} seeds"
                )
            case "not distinguishable":
                words = (
                    f"{name} is not distinguishable from {other} ({shown}): a difference below "
                    f"{bound} would likely have gone unseen"
                )
            case "too few seeds":
                words = f"{name} has too few seeds for a verdict ({shown} against {other})"
            case _:
                words = f"{name} is {self.kind} than {other} ({shown})"
        return f"{words[:1].upper()}{words[1:]}."

    @property
    def brief(self) -> str:
        bound = number(self.details["detectable"])
        words = {
            COLLAPSE: "collapses",
            NOT_DECIDED: "is not decided (two tests disagree)"
            if self.disagreement
            else f"is not decided (above {bound} would have been seen)",
        }
        return f"{self.words} {words.get(self.kind, f'is {self.kind}')}"

    @property
    def effect_on_learning(self) -> str:
        """Whether it ends higher, is only faster, or neither."""
        area = (self.details["area"] or {}).get("verdict")
        if self.kind == BETTER:
            return "ends higher"
        if self.kind in (WORSE, COLLAPSE):
            return "ends lower"
        if area == BETTER:
            return "only faster"
        return "neither" if self.does_not_differ else CANNOT_SAY


@dataclass(frozen=True)
class EffectFound:
    """The answer on one effect of a factorial study."""

    name: str
    verdict: str
    numbers: Json
    """Its entry among the effects of `report.json`."""
    sentence: str | None

    @property
    def is_strong(self) -> bool:
        return self.verdict in (BETTER, WORSE)

    @property
    def brief(self) -> str:
        return f"{self.name} {'raises' if self.verdict == BETTER else 'lowers'} it"

    @property
    def is_interaction(self) -> bool:
        return "factors" in self.numbers

    @property
    def estimate(self) -> str:
        of = self.numbers
        return NOTHING if of["estimate"] is None else within(of["estimate"], of["low"], of["high"])

    @property
    def sign(self) -> int:
        estimate = self.numbers["estimate"] or 0.0
        return (estimate > 0) - (estimate < 0)


@dataclass(frozen=True)
class Found:
    """A question with what its study found; without runs, nothing."""

    asked: Question
    report: Json | None
    arms: Sequence[ArmFound] = ()
    effects: Sequence[EffectFound] = ()
    worlds: Sequence["Found"] = ()
    """The same question in each of its worlds, if it has some."""
    missing: Sequence[str] = ()
    """Arms in words of which no run has ended, where others have."""

    @property
    def is_run(self) -> bool:
        return bool(self.arms or self.effects)

    @property
    def headline(self) -> ArmFound | None:
        return self.arms[0] if self.arms else None

    @property
    def strong_effects(self) -> list[EffectFound]:
        """Largest first."""
        strong = [effect for effect in self.effects if effect.is_strong]
        return sorted(strong, key=lambda e: -abs(e.numbers["estimate"]))

    @property
    def agreement(self) -> str:
        """Whether the headline has the sign that one seed showed at 1.5 B parameters."""
        answer = self.asked.at_1_5b.get("answer")
        kind = self.headline.kind if self.headline else None
        found = WORSE if kind == COLLAPSE else kind
        if answer is None or found not in (BETTER, WORSE, EQUIVALENT):
            return CANNOT_SAY
        return AGREES if AT_1_5B[answer] == found else DOES_NOT_AGREE

    @property
    def why(self) -> str:
        return self.asked.why.get(self.headline.kind, "") if self.headline else ""

    @property
    def seeds(self) -> str:
        if self.effects and self.report:
            return f"{self.report['details']['runs']} runs"
        counts = sorted({arm.numbers["pairs"] for arm in self.arms})
        ends = dict.fromkeys([counts[0], counts[-1]]) if counts else ()
        return " to ".join(map(str, ends)) or NOTHING


def find(rows: Sequence[Question], folder: Path) -> list[Found]:
    """The answers to the questions, from the reports of the studies in `folder`."""
    return [_with_worlds(row, folder) if row.worlds else _found(row, folder) for row in rows]


def with_xray(found: Sequence[Found]) -> Iterator[tuple[str, ArmFound, XrayFound]]:
    """The arms that an X-ray compares with the same arm as the runs, each pair once; and study."""
    pairs = {}
    for row in found:
        for arm in row.arms:
            if arm.xray:
                found_before = (row.asked.study, arm, arm.xray)
                pairs.setdefault((arm.arm, arm.details["against"]), found_before)
    yield from pairs.values()


def _with_worlds(asked: Question, folder: Path) -> Found:
    each = [
        _found(Question(f"{asked.question} {world}", asked.part, study), folder)
        for study, world in asked.worlds.items()
    ]
    return Found(asked, None, worlds=each)


def _effects(report: Json) -> list[EffectFound]:
    sentences = report["details"]["sentences"]
    return [
        EffectFound(_effect_name(entry), entry["verdict"], entry, sentence)
        for entry, sentence in zip(report["effects"], sentences, strict=True)
    ]


def _effect_name(entry: Json) -> str:
    """`baseline`, or `baseline × length_norm`; of a level that is not the only one, with it."""
    if "factors" not in entry:
        return f"{entry['factor']} {_level(entry['levels'])}"
    pairs = zip(entry["factors"], entry["levels"], strict=True)
    return " × ".join(f"{name} {_level(levels)}" for name, levels in pairs)


def _level(levels: Sequence[Any]) -> str:
    value = levels[1]
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def _found(asked: Question, folder: Path) -> Found:
    file = folder / asked.study / "report.json"
    if not file.is_file():
        return Found(asked, None)
    report = read_object(file)
    if report["effects"]:
        every_cell = all(cell["pairs"] for cell in report["arms"].values())
        return Found(asked, report, effects=_effects(report) if every_cell else ())
    names = asked.arms or {name: name for name in report["arms"]}
    known = [name for name in names if name in report["arms"]]
    seen = [name for name in known if report["arms"][name]["pairs"]]
    xray = _xray_of(file.parent)
    words = {**names, **asked.names}
    arms = [_arm(name, words, report, xray) for name in seen]
    return Found(asked, report, arms, missing=[names[name] for name in known if name not in seen])


def _arm(name: str, words: Mapping[str, str], report: Json, xray: Json) -> ArmFound:
    numbers, details = report["arms"][name], report["details"]
    against = details["arms"][name]["against"]
    k, n = numbers["collapsed"]
    return ArmFound(
        arm=name,
        words=words[name],
        against=words.get(against, against),
        kind=COLLAPSE if n and k > MOSTLY * n else numbers["verdict"],
        numbers=numbers,
        details=details["arms"][name],
        xray=_xray(name, against, xray),
        is_mixed=bool({name, against} & set(details["mixed"])),
    )


def _xray_of(study: Path) -> Json:
    """The content of a study's X-ray; empty without one."""
    file = study / XRAY
    return read_object(file) if file.is_file() else {}


def _xray(arm: str, against: str, xray: Json) -> XrayFound | None:
    """None if the X-ray does not compare the two."""
    arms = xray.get("arms", {})
    if not {arm, against} <= arms.keys() or xray["against"][arm] != against:
        return None
    points = arms[arm]
    known = [point for point in points if point["cosine_mean"] is not None]
    first = points[0]["verdict"]
    later = [f"{place_of(p)}: {p['verdict']}" for p in points if p["verdict"] != first]
    farthest = min(known, key=lambda point: point["cosine_mean"], default=points[0])
    same_steps = points[0]["optimizer_steps"] == arms[against][0]["optimizer_steps"]
    kind = re.split(r",| (?:sign|length|difficulty)", farthest["verdict"])[0]
    return XrayFound(
        verdict="; ".join([first, *later]),
        kind=kind if same_steps else OTHER_STEPS,
        distance=1 - statistics.fmean(point["cosine_mean"] for point in known) if known else None,
        same_steps=same_steps,
    )
