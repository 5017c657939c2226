"""The pages of the findings: FINDINGS.md, the table of answers, README's section. Pure.

A page is a list of rows and a template. Studies without runs appear as not run yet.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from trl_ablate.errors import ConfigurationError
from trl_ablate.run.untrusted import for_markdown, markdown_table
from trl_ablate.study.decision import EQUIVALENT, NOT_DECIDED
from trl_ablate.study.report.found_answers import (
    AGREES,
    CANNOT_SAY,
    DOES_NOT,
    DOES_NOT_AGREE,
    MATTERS,
    ONLY_RESCALES,
    ArmFound,
    EffectFound,
    Found,
    with_xray,
)
from trl_ablate.study.report.numbers import NOTHING, within
from trl_ablate.study.report.xray_outcomes import pairs_of_answers, sentence

_INTERVAL = re.compile(r"\\\[([+−]\d+\.\d+, [+−]\d+\.\d+)\\\]")
BEGIN, END = "<!-- findings: begin -->", "<!-- findings: end -->"
NOT_RUN = "not run yet"
README_ROWS = 4
README_HEADING = "## Answers so far\n"
PICTURE, SCATTER = "findings.png", "xray.png"
IN_WORDS = ("question", "control")
"""Parts whose answers are sentences about arms."""

LIMITS = (
    "All of this is about models of 0.1 to 3.5 M parameters on chains of additions such as "
    "`4+3-5+1`, trained for 60 GRPO steps of 128 rollouts. It says what a setting does there and "
    "why, and not what it does to a language model of useful size; the column 'at 1.5 B' sets one "
    "published seed beside it, and one seed decides nothing either."
)
INTERVALS = (
    "A difference is that of the final evaluation reward, paired by seed, with an interval that "
    "covers with 95 % over all looks. 'Equivalent' is within the margin that the study states. † "
    "marks arms of which some runs collapsed and others did not."
)
HOW = (
    "`trl-ablate study plan --all` prints the hours, `trl-ablate study run --all --until decided` "
    "makes the runs, and `trl-ablate findings --runs runs` writes the reports and this page. "
    "Without `--runs` the page is made again from the committed `report.json` files; a test holds "
    "the two together."
)
README_LIMITS = (
    "**These are the answers of a 0.1 M parameter model on chains of additions**, not of a useful "
    "language model.\n[All answers](recipes/studies/README.md), [what they "
    "mean](recipes/studies/FINDINGS.md).\n"
)
HEADER = ("question", "answer", "difference", "seeds", "X-ray", "at 1.5 B, one seed", "agreement")
README_TABLE = (
    "| question | final evaluation reward: difference [95 % interval] | seeds |\n|---|---|---|"
)


def findings_page(found: Sequence[Found], pictures: Collection[str]) -> str:
    """FINDINGS.md, with those of the pictures that are drawn."""
    sections = (
        ("What matters", _bullets(_by_kind(found, MATTERS))),
        ("What does not", _bullets(_by_kind(found, [EQUIVALENT]))),
        ("Bounded, but not decided", _bullets(_by_kind(found, [NOT_DECIDED]))),
        ("What only rescales", _bullets(_rescaling(found))),
        ("X-ray and outcomes", _xrays(found, SCATTER in pictures)),
        ("What depends on what", _bullets(_interactions(found))),
        ("Papers", _papers(found)),
        ("Sharper or more able", _passes(found)),
        ("Does it carry over?", _carried(found)),
        ("Where small worlds mislead", _bullets(_misleading(found))),
        ("Not decided yet", _bullets(_open(found))),
        ("Not run yet", _bullets(_not_run(found))),
        ("How this page was made", HOW),
    )  # fmt: skip
    picture = f"![differences of all answers, with intervals]({PICTURE})" * (PICTURE in pictures)
    parts = ["# Findings", LIMITS, INTERVALS, picture]
    for title, text in sections:
        parts += [f"## {title}", text] if text else []
    return "\n\n".join(part for part in parts if part) + "\n"


def leaderboard(found: Sequence[Found]) -> str:
    """The table of all questions."""
    return markdown_table(HEADER, [_leaderboard_row(row) for row in _studies(found)])


def _studies(found: Sequence[Found]) -> list[Found]:
    """Every study once: of a question in several worlds, those after the first."""
    return [each for row in found for each in (row.worlds[1:] or [row])]


def _leaderboard_row(row: Found) -> list[str]:
    asked = row.asked
    question = _text(asked.question)
    if not row.is_run:
        return [f"[{question}]({asked.study}/study.yaml)", NOT_RUN, *[""] * 3, _seen(row), ""]
    strong = row.strong_effects
    if row.effects:
        names = ", ".join(effect.brief for effect in strong)
        cells = [names or "no effect is distinguishable", _listed(e.estimate for e in strong)]
    elif asked.part in IN_WORDS:
        cells = [_listed(arm.brief for arm in row.arms), _listed(a.difference for a in row.arms)]
    else:
        best = max(row.arms, key=lambda arm: arm.numbers["difference"] or float("-inf"))
        cells = [_counted(row.arms), f"{best.words} {best.difference}"]
    dagger = " †" * bool(row.report and row.report["details"]["mixed"])
    cells[1] += dagger * ("†" not in cells[1])
    xray = row.headline.xray.verdict if row.headline and row.headline.xray else NOTHING
    agreement = row.agreement if asked.at_1_5b else ""
    texts = map(_text, [*cells, row.seeds, xray, _seen(row), agreement])
    return [f"[{question}]({asked.study}/REPORT.md)", *texts]


def readme_section(found: Sequence[Found]) -> str | None:
    """The section of README; None as long as too few of its questions have an answer."""
    shown = [row for row in found if row.asked.readme and row.is_run][:README_ROWS]
    if len(shown) < README_ROWS:
        return None
    rows = [_readme_row(row) for row in shown]
    first = shown[0].asked.study
    picture = f"![curves of the study {first}](recipes/studies/{first}/curves.png)"
    return "\n".join([README_HEADING, README_TABLE, *rows, "", picture, "", README_LIMITS])


def _readme_row(row: Found) -> str:
    """The headline alone: README is short."""
    if row.headline:
        answer = f"{row.headline.brief}, {row.headline.difference}"
        seeds = str(row.headline.numbers["pairs"])
    else:
        sentences = [effect.sentence for effect in row.strong_effects if effect.sentence]
        answer = sentences[0].partition(". ")[0] if sentences else "no effect is distinguishable"
        seeds = row.seeds
    link = f"[{_text(row.asked.question)}](recipes/studies/{row.asked.study}/REPORT.md)"
    return f"| {link} | {_text(answer)} | {seeds} |"


def between_markers(page: str, text: str) -> str:
    """A page with the text between its markers replaced."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ConfigurationError(
            f"the page has no lines {BEGIN} and {END}; add them where the table shall stand"
        )
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def with_section(readme: str, section: str) -> str:
    """README with its section on answers replaced."""
    before, heading, rest = readme.partition(README_HEADING)
    _, next_heading, after = rest.partition("\n## ")
    if not (heading and next_heading):
        raise ConfigurationError(
            f"the README has no section '{README_HEADING.strip()}' before another one; add it"
        )
    return f"{before}{section}{next_heading}{after}"


def _by_kind(found: Sequence[Found], kinds: Sequence[str]) -> Iterator[str]:
    for row in found:
        if row.asked.part not in IN_WORDS:
            continue
        for arm in row.arms:
            if arm.kind in kinds:
                yield arm.sentence + (_beside(row) if arm is row.headline else "")


def _beside(row: Found) -> str:
    """The reason, and what was seen at 1.5 B parameters."""
    words = f" {row.why}" if row.why else ""
    if row.asked.at_1_5b:
        verdict = {AGREES: "it agrees", DOES_NOT_AGREE: "it does not agree"}
        agrees = verdict.get(row.agreement, "whether it agrees, one cannot say")
        words += f" At 1.5 B, one seed: {row.asked.at_1_5b['seen']}; {agrees}."
    return words


def _rescaling(found: Sequence[Found]) -> Iterator[str]:
    seen = set()
    for arm in (arm for row in found if row.asked.part in IN_WORDS for arm in row.arms):
        if arm.xray and arm.xray.kind == ONLY_RESCALES and arm.arm not in seen:
            seen.add(arm.arm)
            yield f"The X-ray finds that {arm.words} {ONLY_RESCALES} the gradient. {arm.sentence}"


def _xrays(found: Sequence[Found], has_picture: bool) -> str:
    """How often the runs found a difference, for each verdict of the X-ray, and the scatter."""
    rows: dict[str, list[int]] = {}
    for _, arm, xray in with_xray(found):
        place = 0 if arm.kind in MATTERS else 1 if arm.does_not_differ else 2
        rows.setdefault(xray.kind, [0, 0, 0])[place] += 1
    header = ["the X-ray says", "runs differ", "runs do not", "open"]
    table = _safe_table(header, [[kind, *map(str, counts)] for kind, counts in rows.items()])
    picture = f"![distance in the X-ray against that in the outcome]({SCATTER})" * has_picture
    words = _text(sentence(pairs_of_answers(found))) if table else ""
    return "\n\n".join(part for part in (table, words, picture) if part)


def _interactions(found: Sequence[Found]) -> Iterator[str]:
    for row in found:
        if row.asked.part == "factors" and row.is_run:
            strong = [e.sentence for e in row.effects if e.is_interaction and e.is_strong]
            mains = [e.sentence for e in row.effects if not e.is_interaction and e.is_strong]
            words = " ".join(text for text in (*strong, *mains) if text)
            yield f"{row.asked.question} {words or 'No effect is distinguishable.'}"


def _papers(found: Sequence[Found]) -> str:
    rows = [
        [arm.words, arm.against, arm.difference, arm.details["expected"] or NOTHING, arm.kind,
         arm.details["agreement"] or NOTHING, arm.effect_on_learning]
        for row in found if row.asked.part == "papers" for arm in row.arms
    ]  # fmt: skip
    header = ["arm", "against", "difference", "expected", "found", "as expected", "effect"]
    note = (
        "Each arm at its own best of three learning rates, with seeds that no trial has used. The "
        "verdicts are corrected for the number of arms, the intervals are those of one arm alone. "
        "'Only faster': no difference at the end, a larger area under the curve."
    )
    return f"{_safe_table(header, rows)}\n\n{note}" if rows else ""


def _passes(found: Sequence[Found]) -> str:
    rows = []
    for row in found:
        passes = row.report["details"]["passes"] if row.report else {}
        for arm, each in passes.items() if row.asked.part == "passes" else ():
            cells = [within(p["rise"], p["low"], p["high"]) for p in (each["one"], each["many"])]
            rows.append([arm, *cells, str(each["k"]), each["verdict"]])
    return _safe_table(["arm", "rise of pass@1", "rise of pass@k", "k", "verdict"], rows)


def _carried(found: Sequence[Found]) -> str:
    parts = []
    for row in found:
        rows = [
            [name, *(effect.estimate if effect else NOTHING for effect in each), kept]
            for name, each, kept in _over_worlds(row)
        ]
        if rows:
            header = ["effect", *row.asked.worlds.values(), "keeps its sign"]
            parts.append(_safe_table(header, rows))
    return "\n\n".join(parts)


def _over_worlds(row: Found) -> Iterator[tuple[str, list[EffectFound | None], str]]:
    """The effects that have a verdict in the first world: name, in each world, sign kept."""
    each = [{effect.name: effect for effect in world.effects} for world in row.worlds]
    for name, first in each[0].items() if each else ():
        if first.is_strong:
            effects = [known.get(name) for known in each]
            yield name, effects, _sign_kept(effects)


def _sign_kept(effects: Sequence[EffectFound | None]) -> str:
    """No only if another world has a verdict against it; one seed shows a sign, not a verdict."""
    first, *others = (effect for effect in effects if effect is not None)
    if not others:
        return CANNOT_SAY
    against = [effect for effect in others if effect.sign != first.sign]
    if not against:
        return "yes"
    return "no" if any(effect.is_strong for effect in against) else CANNOT_SAY


def _misleading(found: Sequence[Found]) -> Iterator[str]:
    for row in found:
        if row.agreement == DOES_NOT_AGREE and row.headline:
            yield f"{row.headline.sentence} At 1.5 B, one seed: {row.asked.at_1_5b['seen']}."
        for name, _, kept in _over_worlds(row):
            if kept == "no":
                yield f"{name} changes its sign in another world."


def _open(found: Sequence[Found]) -> Iterator[str]:
    settled = (*MATTERS, *DOES_NOT)
    for row in found:
        if row.asked.part in IN_WORDS:
            yield from (arm.sentence for arm in row.arms if arm.kind not in settled)


def _not_run(found: Sequence[Found]) -> Iterator[str]:
    for row in _studies(found):
        if not row.is_run:
            yield f"{row.asked.question} ({row.asked.study})"
        elif row.missing:
            yield f"{row.asked.question} {_listed(row.missing)} ({row.asked.study})"


def _seen(row: Found) -> str:
    return row.asked.at_1_5b.get("seen", "")


def _counted(arms: Sequence[ArmFound]) -> str:
    """`better: a, b; worse: c`"""
    kinds = dict.fromkeys(arm.kind for arm in arms)
    return _listed(
        f"{kind}: {', '.join(arm.words for arm in arms if arm.kind == kind)}" for kind in kinds
    )


def _text(text: str) -> str:
    """Plain text for Markdown; the brackets of intervals need no escape."""
    return _INTERVAL.sub(r"[\1]", for_markdown(text))


def _listed(texts: Iterable[str]) -> str:
    return "; ".join(texts)


def _bullets(texts: Iterable[str]) -> str:
    return "\n".join(f"- {_text(text)}" for text in texts)


def _safe_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return markdown_table(header, [list(map(_text, row)) for row in rows]) if rows else ""
