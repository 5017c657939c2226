"""What does the X-ray of a study say, and what did its runs say?

The report of a study with an X-ray has a section with both. And over all arms that were run: does
distance in the X-ray predict distance in the outcome?

    distance    1 - cosine of the mean gradients, averaged over the points of the X-ray
    outcome     |mean final value of the arm's runs - that of the reference's runs|

The rank correlation of the two (Spearman) is over all arms, with the 95 % interval of a seeded
bootstrap over studies. An arm of several studies counts once per study. No torch.
"""

import csv
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from trl_ablate.errors import ConfigurationError
from trl_ablate.run.picture import INK, PALETTE, STYLE, legend, png_of
from trl_ablate.run.untrusted import for_markdown, for_picture, markdown_table
from trl_ablate.study.report.analysis import Analysis
from trl_ablate.study.report.document import Columns, Section, table
from trl_ablate.study.report.found_answers import Found, with_xray
from trl_ablate.study.report.numbers import difference, number
from trl_ablate.study.report.stats import Interval
from trl_ablate.study.store import DONE, RunStore
from trl_ablate.study.xray_file import XRAY, Point, read_xray, xray_folder

DRAWS, LEAST = 2_000, 4
"""Of the bootstrap; and arms for a rank correlation."""
CATASTROPHE = 0.3
"""A difference beyond this is seen without statistics."""
LINE, LETTER, MOVED = 0.027, 0.0066, 1.5
"""Room of a label, as a share of the axes, and lines by which it may be moved."""
LABELLED = 0.09
"""Arms nearer than this in both have no label in the picture; the table has all."""


@dataclass(frozen=True)
class Pair:
    """One arm of one study, which ended higher than its reference if the difference is above 0."""

    study: str
    arm: str
    verdict: str
    distance: float
    difference: float
    collapsed: int
    runs: int
    on_policy: bool
    """Whether it takes as many optimizer steps per rollout batch as the reference."""

    @property
    def outcome(self) -> float:
        return abs(self.difference)


def pairs_of(xray_json: Path, runs_csv: Path) -> list[Pair]:
    """The arms that are in both, each with the arm that the X-ray compares it with."""
    found = read_xray(xray_json)
    if found is None:
        raise ConfigurationError(f"there is no file {xray_json}")
    finals, collapsed = _finals(runs_csv)
    means = {arm: statistics.fmean(values) for arm, values in finals.items()}
    pairs, study = [], runs_csv.resolve().parent.name
    for arm, points in found.arms.items():
        other, distance = found.against(arm), found.distance(arm)
        if arm == found.reference or arm not in means or distance is None:
            continue
        if other not in means:
            raise ConfigurationError(
                f"{runs_csv} has no finished run of '{other}', the reference of {xray_json}; it "
                f"has {', '.join(sorted(finals))}"
            )
        pairs.append(
            Pair(study, arm, points[-1].verdict, distance, means[arm] - means[other],
                 collapsed[arm], len(finals[arm]), found.same_steps(arm))
        )  # fmt: skip
    return pairs


def pairs_of_answers(found: Sequence[Found]) -> list[Pair]:
    """The arms of findings that their studies' X-rays compare with the same arm as the runs do."""
    pairs = []
    for study, arm in with_xray(found):
        distance, of = arm.xray and arm.xray.distance(arm.arm), arm.numbers
        if arm.xray and distance is not None and of["difference"] is not None:
            pairs.append(
                Pair(study, arm.arm, arm.xray_kind, distance, of["difference"],
                     of["collapsed"][0], of["pairs"], arm.xray.same_steps(arm.arm))
            )  # fmt: skip
    return pairs


def correlation(pairs: Sequence[Pair]) -> Interval | None:
    """Spearman's rank correlation over arms and its 95 % interval; None with fewer than `LEAST`,
    and without a value where all are equally far, in the X-ray or in the runs."""
    if len(pairs) < LEAST:
        return None
    table_A2 = np.array([(pair.distance, pair.outcome) for pair in pairs])
    if np.ptp(table_A2, axis=0).min() == 0:
        return Interval(len(pairs), None)
    drawn = [_spearman(table_A2[places]) for places in _draws([pair.study for pair in pairs])]
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    return Interval(len(pairs), _spearman(table_A2), float(low), float(high))


def _draws(studies: Sequence[str]) -> Iterator[np.ndarray]:
    """Places of arms for the bootstrap: whole studies, as their arms share a reference and seeds;
    single arms if there is one study."""
    names = np.array(studies)
    units = [np.flatnonzero(names == name) for name in dict.fromkeys(studies)]
    if len(units) == 1:
        units = [np.array([place]) for place in range(len(names))]
    draw = np.random.default_rng(0)
    for _ in range(DRAWS):
        yield np.concatenate([units[i] for i in draw.integers(0, len(units), len(units))])


def _spearman(table_A2: np.ndarray) -> float:
    """NaN where all values of a column are equal. scipy's own would also test for 0 each time."""
    with np.errstate(invalid="ignore"):
        return float(np.corrcoef(stats.rankdata(table_A2, axis=0).T)[0, 1])


def markdown(pairs: Sequence[Pair]) -> str:
    """A table of the arms, the nearest first, and the correlation."""
    header = ["study", "arm", "verdict", "1 − cosine", "final, minus the reference's", "runs",
              "collapsed"]  # fmt: skip
    rows = [
        [for_markdown(pair.study), for_markdown(pair.arm), pair.verdict, f"{pair.distance:.4f}",
         f"{pair.difference:+.3f}", str(pair.runs), str(pair.collapsed)]
        for pair in sorted(pairs, key=lambda one: one.distance)
    ]  # fmt: skip
    return f"{markdown_table(header, rows)}\n\n{sentence(pairs)}\n"


def sentence(pairs: Sequence[Pair]) -> str:
    """The correlation over all arms, and without those that take more steps per batch, or that
    nobody needs an X-ray for."""
    same_steps = [pair for pair in pairs if pair.on_policy]
    small = [pair for pair in pairs if pair.outcome <= CATASTROPHE]
    words = f"Rank correlation of distance and outcome over {_text(pairs)}."
    for which, of in (
        ("With as many optimizer steps per batch as the reference", same_steps),
        (f"Without outcomes above {CATASTROPHE}", small),
    ):
        words += f" {which}: {_text(of)}." * (len(of) < len(pairs))
    return words


def _text(pairs: Sequence[Pair]) -> str:
    found = correlation(pairs)
    if found is None:
        return f"{len(pairs)} arm{'s' * (len(pairs) != 1)}: too few"
    return f"{found.n} arms: {difference(found, 2)}"


def scatter(pairs: Sequence[Pair]) -> bytes:
    """The picture as PNG: a colour per study, hollow once all are used, a cross where runs
    collapsed."""
    with matplotlib.rc_context(STYLE):
        figure = Figure((10.2, 5.2), dpi=110, layout="constrained")
        axes = figure.add_subplot()
        studies = dict.fromkeys(pair.study for pair in pairs)
        looks: dict[str, dict[str, Any]] = {
            study: {"color": PALETTE[i % len(PALETTE)],
                    "fillstyle": "none" if i >= len(PALETTE) else "full"}
            for i, study in enumerate(studies)
        }  # fmt: skip
        for pair in pairs:
            marker = "X" if pair.collapsed else "o"
            axes.plot([pair.distance], [pair.outcome], marker, markersize=7, **looks[pair.study])
        for study, look in looks.items():
            axes.plot([], [], "o", label=for_picture(study), **look)
        axes.set_xlabel("distance in the X-ray: 1 − cosine of the mean gradients")
        axes.set_ylabel("distance in the outcome")
        axes.set_title("Do X-rays predict outcomes? Cross: a run collapsed", loc="left", fontsize=9)
        legend(figure, fontsize=8, loc="outside right upper")
        _label(axes, [pair for pair in pairs if max(pair.distance, pair.outcome) >= LABELLED])
        return png_of(figure)


def _label(axes: Axes, pairs: Sequence[Pair]) -> None:
    """Names right of the points; one that would lie on another is moved up, and left out where it
    would no longer be beside its point."""
    left, right = axes.get_xlim()
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 2 * LINE * (high - low))
    height, letter = LINE * (high - low), LETTER * (right - left)
    placed: list[tuple[float, float, float]] = []
    for pair in sorted(pairs, key=lambda one: one.outcome):
        name = for_picture(pair.arm, 28)
        start, end, y = pair.distance, pair.distance + letter * (len(name) + 2), pair.outcome
        while any(a < end and start < b and abs(y - at) < height for a, b, at in placed):
            y += height / 4
        if y - pair.outcome > MOVED * height:
            continue
        placed.append((start, end, y))
        axes.text(
            start + 1.5 * letter, y, name, fontsize=6.5, color=INK, va="center", parse_math=False,
            clip_on=False,
        )  # fmt: skip


def _finals(runs_csv: Path) -> tuple[Mapping[str, list[float]], Counter[str]]:
    """Final values and number of collapsed runs of every arm."""
    finals, collapsed = defaultdict(list), Counter()
    with runs_csv.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            value = next((row[name] for name in row if name.startswith("final_")), "")
            if value and row.get("status", "finished") in DONE:
                finals[row["arm"]].append(float(value))
                collapsed[row["arm"]] += bool(row["collapsed_at"])
    return finals, collapsed


def read_pairs(words: Iterable[str]) -> list[Pair]:
    """The pairs of `XRAY_JSON=RUNS_CSV` words."""
    pairs = []
    for word in words:
        xray_json, equals, runs_csv = word.partition("=")
        if not equals:
            raise ConfigurationError(f"'{word}' is not XRAY.JSON=RUNS.CSV; give both files")
        pairs += pairs_of(Path(xray_json), Path(runs_csv))
    return pairs


TITLE = "What the X-ray says, what the runs said"
NOTE = (
    "The X-ray compares the gradients that arms take on the same rollouts, before any run: the "
    "cosine of the mean gradients with that of {reference}, or of the arm named, and the ratio of "
    "their norms. It tells the same, a different and an opposite update apart; it does not say "
    "which is better, and it sees no drift over many steps."
)


def xray_section(store: RunStore, study: str, analysis: Analysis) -> Section:
    """Empty if there is no X-ray of the study."""
    found = read_xray(xray_folder(store, study) / XRAY)
    if found is None:
        return Section(TITLE)
    rows, known = [], {arm.name for arm in analysis.arms}
    for arm, points in found.arms.items():
        if arm != found.reference and arm in known:
            against = found.against(arm)
            label, runs = label_of(arm, against, found.reference), _of_runs(arm, against, analysis)
            rows += [(label, point, runs) for point in points]
    rows += [(arm, Point("", f"out of reach: it {why}"), "") for arm, why in found.skipped.items()]
    columns: Columns = [
        ("arm", lambda row: row[0]),
        ("at", lambda row: row[1].place),
        ("verdict of the X-ray", lambda row: row[1].verdict),
        ("cosine", lambda row: number(row[1].cosine) if row[1].place else ""),
        ("norm ×", lambda row: number(row[1].norm_ratio) if row[1].place else ""),
        ("runs", lambda row: row[2]),
    ]
    return table(TITLE, rows, columns, NOTE.format(reference=found.reference), 3)


def label_of(arm: str, against: str, reference: str) -> str:
    """The name of an arm, with what it is compared with if that is not the reference."""
    return arm + f" (against {against})" * (against != reference)


def _of_runs(arm: str, reference: str, analysis: Analysis) -> str:
    """The verdict of the study, if it compares the same two arms; otherwise both means."""
    known = {one.name: one.intervals[analysis.decide_on].mean for one in analysis.arms}
    if known.get(arm) is None or known.get(reference) is None:
        return "no runs"
    means = f"{number(known[arm])} against {number(known[reference])}"
    compared = arm in analysis.decisive and analysis.reference_of(arm).name == reference
    return f"{analysis.decisive[arm].verdict}: {means}" if compared else f"{means} (not tested)"
