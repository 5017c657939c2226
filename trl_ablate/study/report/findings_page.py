"""The pages of the findings: FINDINGS.md, the table of answers, README's section. Pure.

A page is a list of rows and a template. Studies without runs appear as not run yet.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from trl_ablate.errors import ConfigurationError
from trl_ablate.run.untrusted import for_markdown, markdown_table
from trl_ablate.study.report.found_answers import (
    CANNOT_SAY,
    ONLY_RESCALES,
    ArmFound,
    EffectFound,
    Found,
    with_xray,
)
from trl_ablate.study.report.numbers import NOTHING, signed, within
from trl_ablate.study.report.xray_outcomes import pairs_of_answers, sentence
from trl_ablate.study.verdict import Verdict

_INTERVAL = re.compile(r"\\\[([+−]\d+\.\d+, [+−]\d+\.\d+)\\\]")
_EMPTY_SECTION = re.compile(r"^## [^\n]+\n+(?=## |\Z)", re.MULTILINE)
BEGIN, END = "<!-- findings: begin -->", "<!-- findings: end -->"
README_ROWS = 4
README_HEADING = "## Answers so far\n"
PICTURE, SCATTER = "findings.png", "xray.png"

README_LIMITS = (
    "**These are the answers of a 0.1 M parameter model on chains of additions**, not of a useful "
    "language model.\n[All answers](recipes/studies/ANSWERS.md), [what they "
    "mean](recipes/studies/FINDINGS.md).\n"
)
HEADER = ("question", "answer", "difference", "seeds", "X-ray")
README_TABLE = (
    "| question | final evaluation reward: difference [95 % interval] | seeds |\n|---|---|---|"
)


def findings_page(found: Sequence[Found], pictures: Collection[str]) -> str:
    """FINDINGS.md, with those of the pictures that are drawn."""
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined, trim_blocks=True,
    )  # fmt: skip
    templates.filters["text"] = _text
    page = templates.get_template("FINDINGS.md.j2").render(
        bullets=lambda texts: "\n".join(f"- {_text(text)}" for text in texts),
        table=_safe_table,
        answers=lambda *kinds: _answers(found, kinds),
        rescaling=_rescaling(found),
        xrays=_xrays(found),
        correlation=sentence(pairs_of_answers(found)),
        interactions=_interactions(found),
        papers=_papers(found),
        passes=list(_passes(found)),
        carried=[
            {"worlds": list(row.asked.worlds.values()), "rows": _carried(row)} for row in found
        ],
        misleading=_misleading(found),
        not_run=_not_run(found),
        picture=PICTURE if PICTURE in pictures else None,
        scatter=SCATTER if SCATTER in pictures else None,
    )
    page = re.sub(r"\n{3,}", "\n\n", page).strip()
    return _EMPTY_SECTION.sub("", page) + "\n"


def leaderboard(found: Sequence[Found]) -> str:
    """The table of all questions."""
    return markdown_table(HEADER, [_leaderboard_row(row) for row in _studies(found)])


def _studies(found: Sequence[Found]) -> list[Found]:
    """Every study once: of a question in several worlds, those after the first."""
    return [each for row in found for each in (row.worlds[1:] or [row])]


def _leaderboard_row(row: Found) -> list[str]:
    asked, question = row.asked, _text(row.asked.question)
    if not row.is_run:
        return [f"[{question}]({asked.study}/study.yaml)", "not run yet", *[""] * 3]
    if row.effects:
        strong = row.strong_effects
        names = ", ".join(effect.brief for effect in strong) or "no effect is distinguishable"
        answer, numbers = names, "; ".join(effect.estimate for effect in strong)
    elif row.is_in_words:
        answer = "; ".join(arm.brief for arm in row.arms)
        numbers = "; ".join(arm.difference for arm in row.arms)
    else:
        best = max(row.arms, key=lambda arm: arm.numbers["difference"] or float("-inf"))
        answer, numbers = _counted(row.arms), f"{best.words} {best.difference}"
    if row.report and row.report["details"]["mixed"] and "†" not in numbers:
        numbers += " †"
    xray = row.headline.xray.verdict if row.headline and row.headline.xray else NOTHING
    texts = map(_text, [answer, numbers, row.seeds, xray])
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
    return _replaced(
        page, BEGIN, f"\n{text}\n", END, f"the page has no lines {BEGIN} and {END}; add them where "
        "the table shall stand",
    )  # fmt: skip


def with_section(readme: str, section: str) -> str:
    """README with its section on answers replaced."""
    return _replaced(
        readme, README_HEADING, section.removeprefix(README_HEADING), "\n## ",
        f"the README has no section '{README_HEADING.strip()}' before another one; add it",
    )  # fmt: skip


def _replaced(page: str, begin: str, text: str, end: str, complaint: str) -> str:
    before, found, rest = page.partition(begin)
    _, next_found, after = rest.partition(end)
    if not (found and next_found):
        raise ConfigurationError(complaint)
    return f"{before}{begin}{text}{end}{after}"


def answered_arms(found: Sequence[Found]) -> list[ArmFound]:
    """The arms of the answers that are sentences."""
    return [arm for row in found if row.is_in_words for arm in row.arms]


def _answers(found: Sequence[Found], kinds: Sequence[str]) -> Iterator[str]:
    for row in found:
        for arm in row.arms if row.is_in_words else ():
            if arm.kind in kinds:
                yield arm.sentence + (row.beside if arm is row.headline else "")


def _rescaling(found: Sequence[Found]) -> list[str]:
    first: dict[str, str] = {}
    for arm in answered_arms(found):
        if arm.xray and arm.xray.kind == ONLY_RESCALES:
            words = f"The X-ray finds that {arm.words} only rescales the gradient. {arm.sentence}"
            first.setdefault(arm.arm, words)
    return list(first.values())


def _xrays(found: Sequence[Found]) -> list[list[str]]:
    """How often the runs found a difference, found none, or left it open, for each verdict of the
    X-ray."""
    counts: dict[str, list[int]] = {}
    for _, arm, xray in with_xray(found):
        place = 0 if arm.kind.matters else 1 if arm.kind is Verdict.EQUIVALENT else 2
        counts.setdefault(xray.kind, [0, 0, 0])[place] += 1
    return [[kind, *map(str, of_kind)] for kind, of_kind in counts.items()]


def _interactions(found: Sequence[Found]) -> Iterator[str]:
    for row in found:
        if row.asked.part == "factors" and row.is_run:
            strong = [effect for effect in row.effects if effect.is_strong and effect.sentence]
            strong.sort(key=lambda effect: not effect.is_interaction)
            words = " ".join(str(effect.sentence) for effect in strong)
            yield f"{row.asked.question} {words or 'No effect is distinguishable.'}"


def _papers(found: Sequence[Found]) -> list[list[str]]:
    return [
        [arm.words, arm.against, arm.difference + arm.successes, _expected(arm), arm.kind,
         arm.details["agreement"] or NOTHING, arm.effect_on_learning]
        for row in found if row.asked.part == "papers" for arm in row.arms
    ]  # fmt: skip


def _expected(arm: ArmFound) -> str:
    """A verdict, or the size of the difference."""
    expected = arm.details["expected"]
    return signed(expected) if isinstance(expected, (int, float)) else expected or NOTHING


def _passes(found: Sequence[Found]) -> Iterator[list[str]]:
    for row in found:
        passes = row.report["details"]["passes"] if row.report else {}
        for arm, each in passes.items() if row.asked.part == "passes" else ():
            cells = [within(p["rise"], p["low"], p["high"]) for p in (each["one"], each["many"])]
            yield [arm, *cells, str(each["k"]), each["verdict"]]


def _carried(row: Found) -> list[list[str]]:
    return [
        [name, *(effect.estimate if effect else NOTHING for effect in each), kept]
        for name, each, kept in _over_worlds(row)
    ]


def _over_worlds(row: Found) -> Iterator[tuple[str, list[EffectFound | None], str]]:
    """The effects that have a verdict in the first world: name, in each world, sign kept."""
    each = [{effect.name: effect for effect in world.effects} for world in row.worlds]
    for name, first in each[0].items() if each else ():
        if first.is_strong:
            effects = [known.get(name) for known in each]
            yield name, effects, _sign_kept(effects)


def _sign_kept(effects: Sequence[EffectFound | None]) -> str:
    """An interval that contains 0 shows no sign."""
    first, *others = (effect for effect in effects if effect is not None)
    if any(effect.is_strong and effect.sign != first.sign for effect in others):
        return "no"
    same = all(effect.sign == first.sign and effect.excludes_0 for effect in others)
    return "yes" if others and same else CANNOT_SAY


def _misleading(found: Sequence[Found]) -> Iterator[str]:
    for row in found:
        for name, _, kept in _over_worlds(row):
            if kept == "no":
                yield f"{name} changes its sign in another world."


def _not_run(found: Sequence[Found]) -> Iterator[str]:
    for row in _studies(found):
        if not row.is_run:
            yield f"{row.asked.question} ({row.asked.study})"
        elif row.missing:
            yield f"{row.asked.question} {'; '.join(row.missing)} ({row.asked.study})"


def _counted(arms: Sequence[ArmFound]) -> str:
    """`better: a, b; worse: c`"""
    kinds = dict.fromkeys(arm.kind for arm in arms)
    return "; ".join(
        f"{kind}: {', '.join(arm.words for arm in arms if arm.kind == kind)}" for kind in kinds
    )


def _text(text: str) -> str:
    """Plain text for Markdown; the brackets of intervals need no escape."""
    return _INTERVAL.sub(r"[\1]", for_markdown(text))


def _safe_table(header: Iterable[str], rows: Sequence[Sequence[str]]) -> str:
    return markdown_table(header, [list(map(_text, row)) for row in rows]) if rows else ""
