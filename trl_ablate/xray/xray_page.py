"""The result of an X-ray: JSON, Markdown and a picture."""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from trl_ablate.run.json_files import write_json
from trl_ablate.run.untrusted import for_markdown, markdown_table
from trl_ablate.study.report.xray_outcomes import label_of
from trl_ablate.study.xray_file import XRAY
from trl_ablate.xray.figures import (
    LEAST_FLOOR,
    NAMED,
    RULES,
    ArmFigures,
    Directions,
    Interval,
    Verdict,
)
from trl_ablate.xray.gradients import BY

PAGE = Path(__file__).with_name("xray_page.md.j2")
LOST = ("clipped", "masked", "dropped")


@dataclass(frozen=True)
class AtPoint:
    figures: ArmFigures
    verdict: Verdict
    steps: int
    """Optimizer steps per rollout batch."""
    seconds: float
    """Of a rollout batch, without generation."""


@dataclass(frozen=True)
class XrayedPoint:
    checkpoint: str
    drift: int
    floor: float | None
    arms: Mapping[str, AtPoint]
    notes: Sequence[str]

    @property
    def title(self) -> str:
        return self.checkpoint + f" + {self.drift} optimizer steps" * bool(self.drift)

    @property
    def shown_floor(self) -> str:
        if self.floor is None:
            return "none"
        low = f" (counted as {LEAST_FLOOR})" * (self.floor < LEAST_FLOOR)
        return f"{self.floor:.3f}{low}"

    def entry(self, arm: str) -> dict[str, Any]:
        found = self.arms[arm]
        figures, verdict = found.figures, found.verdict
        return {
            "checkpoint": self.checkpoint,
            "drift": self.drift,
            **dataclasses.asdict(figures.plain),
            "verdict": verdict.words,
            "reweights": {name: verdict.reweights.get(name, 0.0) for name in NAMED},
            "sentence": verdict.sentence,
            "preconditioned": figures.adam and dataclasses.asdict(figures.adam),
            **{name: vars(figures)[name] for name in ("modules", "shares", "shifts", "tokens")},
            "optimizer_steps": found.steps,
            "seconds_per_batch": found.seconds,
        }


@dataclass(frozen=True)
class Xray:
    reference: str
    against: Mapping[str, str]
    """Each arm, the reference first, and the arm that it is compared with."""
    points: Sequence[XrayedPoint]
    skipped: Mapping[str, str]
    """Arms out of reach of the comparison, and why."""
    batches: int
    seed: int

    @property
    def labels(self) -> dict[str, str]:
        return {arm: label_of(arm, other, self.reference) for arm, other in self.against.items()}

    def to_dict(self) -> dict[str, Any]:
        """The content of `xray.json`, with six digits; NaN is null."""
        found = {
            "reference": self.reference,
            "against": dict(self.against),
            "arms": {arm: [point.entry(arm) for point in self.points] for arm in self.against},
            "skipped": dict(self.skipped),
            "noise_floor": [
                {"checkpoint": point.checkpoint, "drift": point.drift, "cosine": point.floor}
                for point in self.points
            ],
            "batches": self.batches,
            "seed": self.seed,
            "rules": RULES,
            "notes": [note for point in self.points for note in point.notes],
        }
        return json.loads(
            json.dumps(found),
            parse_constant=lambda nan: None,
            parse_float=lambda text: float(f"{float(text):.6g}"),
        )

    def markdown(self) -> str:
        template = Environment(undefined=StrictUndefined, trim_blocks=True)
        template.filters["md"] = for_markdown
        page = template.from_string(PAGE.read_text(encoding="utf-8"))
        return page.render(xray=self, rules=RULES, tables=self._tables)

    def _tables(self, point: XrayedPoint) -> Iterator[str]:
        for columns in (_directions, _shares, _modules):
            cells = {label: columns(point.arms[arm]) for arm, label in self.labels.items()}
            header = [title for title, _ in next(iter(cells.values()))]
            rows = [[for_markdown(arm), *(cell for _, cell in row)] for arm, row in cells.items()]
            yield markdown_table(["arm", *header], rows)

    def summary(self) -> str:
        """A line per arm and point, and the rules of the verdicts that occur."""
        lines, occurring = [], set()
        for point in self.points:
            lines.append(f"at {point.title}, noise floor {point.shown_floor}:")
            for arm, label in self.labels.items():
                plain, verdict = point.arms[arm].figures.plain, point.arms[arm].verdict
                lines.append(
                    f"  {label}: {verdict.words}; norm × {_number(plain.norm_ratio, 3)}, "
                    f"cosine {_number(plain.cosine_batch, 4)} on the same batch, "
                    f"{_number(plain.cosine_mean, 4)} of the means; {verdict.sentence}"
                )
                occurring.update(verdict.words.split(", "), verdict.words.split(" ")[:1])
        rules = [
            f"  {name}: {rule}" for name, rule in RULES.items() if {*name.split(", ")} & occurring
        ]
        return "\n".join([*lines, "rules:", *rules])

    def write(self, folder: Path) -> None:
        from trl_ablate.xray.plots import draw

        write_json(folder / XRAY, self.to_dict(), indent=None)
        picture = "\n![cosine against norm ratio, and who gets the gradient](xray.png)\n"
        (folder / "XRAY.md").write_text(self.markdown() + picture, encoding="utf-8")
        (folder / "xray.png").write_bytes(draw(self))


def _directions(one: AtPoint) -> list[tuple[str, str]]:
    plain, adam, verdict = one.figures.plain, one.figures.adam, one.verdict
    return [
        ("norm ×", _number(plain.norm_ratio, 3)),
        ("cosine, same batch", _with_interval(plain.cosine_batch, plain.cosine_batch_interval)),
        ("lowest", _number(plain.cosine_batch_min, 4)),
        ("cosine of the means", _with_interval(plain.cosine_mean, plain.cosine_mean_interval)),
        ("its own batches", _number(plain.self_cosine, 2)),
        ("signal / noise", _steadiness(plain)),
        ("after Adam: norm ×", _number(adam.norm_ratio, 3) if adam else "-"),
        ("after Adam: cosine of the means", _number(adam.cosine_mean, 4) if adam else "-"),
        ("verdict", f"**{verdict.words}**: {verdict.sentence}"),
    ]


def _shares(one: AtPoint) -> list[tuple[str, str]]:
    titles = ("advantage +, −", "length", "passes, 0 up", "position")
    shares = [" ".join(f"{100 * one:.0f}" for one in one.figures.shares[name]) for name in BY]
    lost = [(name, f"{100 * one.figures.tokens[name]:.1f}") for name in LOST]
    return [*zip(titles, shares, strict=True), *lost]


def _modules(one: AtPoint) -> list[tuple[str, str]]:
    """Kinds first, then layers."""
    modules = one.figures.modules
    return [
        (name, f"{_number(found['cosine'], 2)} ({_number(found['norm_ratio'], 2)})")
        for name, found in sorted(modules.items(), key=lambda item: item[0].startswith("layer "))
    ]


def _steadiness(plain: Directions) -> str:
    if plain.signal_to_noise is None:
        return "-"
    interval = plain.steadiness_interval
    within = f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else ""
    relative = "" if plain.steadiness is None else f" (× {plain.steadiness:.2f}{within})"
    return f"{plain.signal_to_noise:.2f}{relative}"


def _with_interval(value: float, interval: Interval) -> str:
    if interval is None:
        return _number(value, 4)
    low, high = (max(-1.0, min(1.0, end)) for end in interval)
    return f"{_number(value, 4)} [{_number(low, 3)}, {_number(high, 3)}]"


def _number(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
