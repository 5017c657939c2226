"""The page of `trl-ablate judge`: verdicts on anybody's runs, as tables, a picture and JSON."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trl_ablate.errors import shortened
from trl_ablate.study.report.curves import Run
from trl_ablate.study.report.document import Columns, Document, Items, Picture, Section, table
from trl_ablate.study.report.foreign_runs import how_they_ended
from trl_ablate.study.report.judged_arms import MOST_RUNS, Judged, Judgement, Pooled
from trl_ablate.study.report.numbers import (
    NOTHING,
    interval,
    number,
    p_value,
    p_words,
    signed,
    within,
)
from trl_ablate.study.report.stats import ALPHA
from trl_ablate.study.verdict import Verdict

VERDICTS_NOTE = (
    "A higher outcome is better, and a run succeeds from its group's threshold on. The share of "
    "successes has its exact 95 % interval and the p-value of Fisher's exact test against the "
    "group's first arm; the mean is over the runs that succeed, with a 95 % t interval, and its "
    "difference with that of Welch's test, from three successes of each on ('equivalent': from "
    "eight). Intervals are of one comparison alone; p, on which verdicts rest, is over both parts, "
    "corrected (Holm) over the arms of a group; that of 'equivalent', of two one-sided tests, is "
    "not shown. 'Runs needed' "
    "is about how many of each arm decide, by shares or by means, with 80 % probability, if what "
    "was seen is true; a few runs are a weak sign of that."
)
POOLED_NOTE = (
    "Odds of success over those of {reference}, common to the groups, with the exact conditional "
    "test of Cochran, Mantel and Haenszel; the mean of the differences by a random-effects model "
    "(Paule-Mandel, Hartung-Knapp) over the groups with three successes of each, the share of "
    "their variance that is between groups (I²), and where a new group's true difference lies with "
    "95 % (85 to 93 % where groups are few and differ). 'Without one' is the range over the groups "
    "left out one by one, of three or more."
)


def judged_document(
    found: Judgement, runs: Sequence[Run], files: Sequence[str], *, pictures: bool
) -> Document:
    names = shortened(", ".join(Path(file).name or file for file in files), 300)
    lead = f"{len(runs)} runs from {names}; {found.metric}, against {found.reference}"
    parts = [
        Section("Answer", [Items(sentences(found, runs))]),
        _verdicts(found),
        _pooled(found),
        Section("Runs", [_picture(found), *_curves(found, runs)] if pictures else []),
        _read(runs, found.metric),
    ]
    return Document(f"Verdicts on {found.metric}", lead, parts)


def _curves(found: Judgement, runs: Sequence[Run]) -> Iterator[Picture]:
    """Of each group whose runs have more than their final values."""
    from trl_ablate.study.report.analysis import analyse
    from trl_ablate.study.report.pictures import about_bands, draw_curves

    for place, group in enumerate(found.groups):
        own = _runs_of(group, found, runs)
        if any(len(run.series[found.metric].steps) > 1 for run in own):
            analysis = analyse(own, found.metric)
            about = f"{found.metric} of {group or 'all arms'}{about_bands(analysis)}"
            yield Picture(f"curves{place or ''}.png", draw_curves(analysis, unit="steps"), about)


def sentences(found: Judgement, runs: Sequence[Run]) -> list[str]:
    """What counts as success, then what is decided."""
    without = ", ".join(run.name for run in runs if found.metric not in run.series)
    lines = [f"left out, as without a finite {found.metric}: {without}"] if without else []
    lines += _doubts(found, runs)
    for group, arms in found.groups.items():
        start = f"a run succeeds from {number(arms[0].threshold)} on"
        if found.bases is not None:
            base, median = found.bases[group], f"the median run of {arms[0].arm}"
            start += f", half of what {median} gains over {number(base or 0)}"
            if base is not None and arms[0].threshold == base:
                start = f"{median} gains nothing over {number(base)}, so that a run succeeds from "
                start += "there on; --threshold changes it"
            start += " (no run logs a step 0; --base changes it)" if base is None else ""
        own = _runs_of(group, found, runs)
        start = "; ".join([start, *how_they_ended(own, found.metric)])
        of = [one for one in arms if one.verdict]
        words = [start, *(_sentence(one) for one in of if one.verdict.is_final)]
        if left := len(of) + 1 - len(words):
            words.append(f"{left} of {len(of)} comparisons are not decided")
        lines += [f"{group}: {each}" if group else each for each in words]
    return lines


def _doubts(found: Judgement, runs: Sequence[Run]) -> Iterator[str]:
    """Where names or columns were probably not meant as they were read."""
    numbered = all(run.seed is None and run.arm[-1:].isdigit() for run in runs)
    if numbered and 2 < len(runs) == len({run.arm for run in runs}):
        yield (
            f"each of the {len(runs)} runs is read as an arm of its own; if their names end in "
            "seeds, give --names '(?P<arm>.+)[-_/](?P<seed>[0-9]+)'"
        )
    arms = [one.arm for group in found.groups.values() for one in group]
    if len(found.groups) > 1 and len({*arms}) == len(arms):
        yield "no arm is in two groups; if the groups are the arms, name their column by --arm"


def _runs_of(group: str, found: Judgement, runs: Sequence[Run]) -> list[Run]:
    """Those of a group that have the metric."""
    return [run for run in runs if (run.group or "") == group and found.metric in run.series]


def _sentence(one: Judged) -> str:
    (k, n), (other, m) = one.shares.arm, one.shares.reference
    if one.verdict in (Verdict.FAILS_MORE, Verdict.FAILS_LESS):
        return (
            f"{one.arm} {one.verdict} than {one.against}: {k} of {n} runs succeed against "
            f"{other} of {m} ({p_words(one.p)})"
        )
    joint = f"{one.verdict} {'to' if one.verdict is Verdict.EQUIVALENT else 'than'}"
    return f"{one.arm} is {joint} {one.against} where both succeed: {_difference(one)}"


def _difference(one: Judged) -> str:
    return within(one.means.difference, *one.means.interval(ALPHA)) if one.means else NOTHING


def _verdicts(found: Judgement) -> Section:
    def needed(one: Judged) -> str:
        if one.needed is None:
            return NOTHING
        return f"about {one.needed}" if one.needed <= MOST_RUNS else f"over {MOST_RUNS}"

    rows = [(group, one) for group, arms in found.groups.items() for one in arms]
    columns: Columns = [
        *([("group", lambda row: row[0])] if len(found.groups) > 1 else []),
        ("arm", lambda row: row[1].arm),
        ("verdict", lambda row: row[1].verdict or NOTHING),
        ("succeed", lambda row: f"{len(row[1].successes)} of {len(row[1].values)}"),
        ("share", lambda row: " to ".join(map(number, row[1].share))),
        ("p of share", lambda row: p_value(row[1].shares and row[1].shares.p)),
        ("mean of those", lambda row: interval(row[1].mean)),
        ("difference", lambda row: _difference(row[1])),
        ("p", lambda row: p_value(row[1].p)),
        ("runs needed", lambda row: needed(row[1])),
    ]
    return table("Verdicts", rows, columns, VERDICTS_NOTE, len(columns) - 7)


def _pooled(found: Judgement) -> Section:
    def odds(one: Pooled) -> str:
        if one.odds is None:
            return NOTHING
        ratio, limits = one.odds.odds_ratio, f"[{one.odds.low:.2g}, {one.odds.high:.2g}]"
        return f"{ratio:.2g} {limits}".replace("inf", "∞")

    def mean(one: Pooled) -> str:
        of = one.means
        return within(of.difference, of.low, of.high) if of else NOTHING

    def counts(one: Pooled) -> str:
        sides = [[share.arm for share in one.shares], [share.reference for share in one.shares]]
        totals = [[sum(column) for column in zip(*side, strict=True)] for side in sides]
        return " against ".join(f"{k} of {n}" for k, n in totals)

    columns: Columns = [
        ("arm", lambda one: one.arm),
        ("groups", lambda one: ", ".join(one.groups)),
        ("succeed", counts),
        ("odds ratio", odds),
        ("p of shares", lambda one: p_value(one.odds and one.odds.p)),
        ("without one", lambda one: _span([p_value(o.p) for o, _ in one.without.values() if o])),
        ("difference of means", mean),
        ("without one", lambda one: _span(
            [signed(m.difference) for _, m in one.without.values() if m])),
        ("I²", lambda one: f"{one.means.i_squared:.0%}" if one.means else NOTHING),
        ("new group", lambda one: _span(map(signed, one.means.predicted) if one.means else [])),
    ]  # fmt: skip
    note = POOLED_NOTE.format(reference=found.reference)
    return table("All groups together", found.pooled, columns, note, 2)


def _span(values: Iterable[str]) -> str:
    """The different ones, from the lowest to the highest."""
    kept = sorted(set(values), key=lambda text: float(text.replace("−", "-").strip("< ")))
    return " to ".join(dict.fromkeys((kept[0], kept[-1]))) if kept else NOTHING


def _read(runs: Sequence[Run], metric: str) -> Section:
    """How the names were understood."""

    def last(own: Sequence[Run]) -> str:
        ends = [run.series[metric].steps[-1] for run in own if metric in run.series] or [0]
        return " to ".join(dict.fromkeys((f"{min(ends):g}", f"{max(ends):g}")))

    arms: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        arms.setdefault((run.group or NOTHING, run.arm), []).append(run)
    columns: Columns = [
        ("group", lambda item: item[0][0]),
        ("arm", lambda item: item[0][1]),
        ("seeds", lambda item: ", ".join("?" if r.seed is None else str(r.seed) for r in item[1])),
        ("last step", lambda item: last(item[1])),
    ]
    note = "As found in columns or names; --arm, --seed, --group and --names change it."
    return table("How the runs were read", arms.items(), columns, note, 2)


def _picture(found: Judgement) -> Picture:
    """A dot for each run, and the threshold of each group."""
    import matplotlib
    from matplotlib.figure import Figure

    from trl_ablate.run.picture import INK, PALETTE, STYLE, legend, png_of
    from trl_ablate.run.untrusted import for_picture

    arms = list(dict.fromkeys(one.arm for group in found.groups.values() for one in group))
    with matplotlib.rc_context(STYLE):
        figure = Figure((8.5, 0.9 + 0.3 * len(arms)), dpi=110, layout="constrained")
        axes = figure.subplots()
        for place, (group, judged) in enumerate(found.groups.items()):
            colour = PALETTE[place % len(PALETTE)]
            shift = 0.5 * ((place + 0.5) / len(found.groups) - 0.5)
            label = for_picture(group) if group else None
            axes.axvline(judged[0].threshold, color=colour, linewidth=1, linestyle=":")
            points = [(x, arms.index(one.arm) + shift) for one in judged for x in one.values]
            axes.plot(
                *zip(*points, strict=True), "o", color=colour, alpha=0.7, markersize=5, label=label
            )
        axes.set_yticks(range(len(arms)), [for_picture(arm, 40) for arm in arms], parse_math=False)
        axes.invert_yaxis()
        axes.set_xlabel(for_picture(found.metric), color=INK, parse_math=False)
        if len(found.groups) > 1:
            legend(axes, loc="best")
        about = f"final {found.metric} of every run; dotted: from where on a run succeeds"
        return Picture("runs.png", png_of(figure), about)


def judged_numbers(found: Judgement) -> dict[str, Any]:
    """The judgement as JSON; infinite numbers become null."""
    return json.loads(json.dumps(asdict(found)), parse_constant=lambda _: None)
