"""The result of an X-ray: JSON, Markdown and a picture."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trl_ablate.run.json_files import write_json
from trl_ablate.run.untrusted import for_markdown, markdown_table
from trl_ablate.study.report.xray_section import label_of
from trl_ablate.study.xray_file import XRAY
from trl_ablate.xray.figures import ArmFigures, Directions
from trl_ablate.xray.judging import NAMED, RULES, Verdict
from trl_ablate.xray.pushes import BY


@dataclass(frozen=True)
class AtPoint:
    """The figures and verdicts of all arms at one point."""

    checkpoint: str
    drift: int
    floor: float | None
    figures: Mapping[str, ArmFigures]
    verdicts: Mapping[str, Verdict]
    seconds: Mapping[str, float]
    """Of a rollout batch, without generation."""
    steps: Mapping[str, int]
    """Optimizer steps per rollout batch."""
    notes: Sequence[str]

    @property
    def title(self) -> str:
        return self.checkpoint + f" + {self.drift} optimizer steps" * bool(self.drift)

    def entry(self, arm: str) -> dict[str, Any]:
        figures, verdict = self.figures[arm], self.verdicts[arm]
        return {
            "checkpoint": self.checkpoint,
            "drift": self.drift,
            **dataclasses.asdict(figures.plain),
            "verdict": verdict.words,
            "reweights": {name: verdict.reweights.get(name, 0.0) for name in NAMED},
            "sentence": verdict.sentence,
            "preconditioned": figures.adam and dataclasses.asdict(figures.adam),
            **{name: vars(figures)[name] for name in ("modules", "shares", "shifts", "tokens")},
            "optimizer_steps": self.steps[arm],
            "seconds_per_batch": self.seconds[arm],
        }


@dataclass(frozen=True)
class Xray:
    """What arms do to the gradient, on the same rollouts."""

    reference: str
    against: Mapping[str, str]
    """Each arm, the reference first, and the arm that it is compared with."""
    points: Sequence[AtPoint]
    skipped: Mapping[str, str]
    """Arms out of reach of the comparison, and why."""
    batches: int
    seed: int

    @property
    def arms(self) -> list[str]:
        return list(self.against)

    @property
    def labels(self) -> dict[str, str]:
        return {arm: label_of(arm, other, self.reference) for arm, other in self.against.items()}

    def to_dict(self) -> dict[str, Any]:
        """The content of `xray.json`; NaN is null."""
        found = {
            "reference": self.reference,
            "against": dict(self.against),
            "arms": {arm: [point.entry(arm) for point in self.points] for arm in self.arms},
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
        return _without_nan(found)

    def markdown(self) -> str:
        """Tables, verdicts and rules."""
        parts = [
            f"# X-ray on rollouts of {for_markdown(self.reference)}",
            f"The gradients that each arm takes on the same {self.batches} rollout batches, seed "
            f"{self.seed}. It separates the same, a different and an opposite update; it does not "
            "say which is better.",
        ]
        for point in self.points:
            parts += [f"## At {for_markdown(point.title)}", *self._at(point)]
        if self.skipped:
            rows = [f"- {for_markdown(arm)} {for_markdown(why)}" for arm, why in
                    self.skipped.items()]  # fmt: skip
            parts += ["## Out of reach of the comparison", "\n".join(rows)]
        rules = [f"- **{name}**: {rule}" for name, rule in RULES.items()]
        return "\n\n".join([*parts, "## Rules of the verdicts", "\n".join(rules)]) + "\n"

    def summary(self) -> str:
        """A line per arm and point, and the rules of the verdicts that occur."""
        lines, occurring = [], set()
        for point in self.points:
            floor = "" if point.floor is None else f", noise floor {point.floor:.3f}"
            lines.append(f"at {point.title}{floor}:")
            for arm in self.arms:
                plain, verdict = point.figures[arm].plain, point.verdicts[arm]
                numbers = f"norm × {_number(plain.norm_ratio, 3)}, cosine "
                numbers += f"{_number(plain.cosine_batch, 4)} on the same batch, "
                numbers += f"{_number(plain.cosine_mean, 4)} of the means"
                lines.append(
                    f"  {self.labels[arm]}: {verdict.words}; {numbers}; {verdict.sentence}"
                )
                occurring.add(verdict.words)
        names = set().union(*map(_words, occurring))
        rules = [f"  {name}: {rule}" for name, rule in RULES.items() if {*name.split(", ")} & names]
        return "\n".join([*lines, "rules:", *rules])

    def write(self, folder: Path) -> None:
        """Write xray.json, XRAY.md and xray.png."""
        from trl_ablate.xray.plots import draw

        write_json(folder / XRAY, self.to_dict())
        picture = "\n![cosine against norm ratio, and who gets the gradient](xray.png)\n"
        (folder / "XRAY.md").write_text(self.markdown() + picture, encoding="utf-8")
        (folder / "xray.png").write_bytes(draw(self))

    def _at(self, point: AtPoint) -> list[str]:
        floor = "none" if point.floor is None else f"{point.floor:.3f}"
        return [
            f"Noise floor of a cosine of 1: {floor}.",
            *map(for_markdown, point.notes),
            self._table(point, DIRECTIONS, _directions_row),
            "Who gets the gradient (shares of the pushes on tokens, in %; quarters from the "
            "shortest response, and from its first token):",
            self._table(point, SHARES, _shares_row),
            "By module, cosine of the mean gradients (norm ratio):",
            self._table(point, _module_names(point), _modules_row),
        ]

    def _table(
        self, point: AtPoint, columns: Sequence[str], row: Callable[[AtPoint, str], list[str]]
    ) -> str:
        rows = [[for_markdown(label), *row(point, arm)] for arm, label in self.labels.items()]
        return markdown_table(["arm", *columns], rows)


DIRECTIONS = (
    "norm ×",
    "cosine, same batch",
    "lowest",
    "cosine of the means",
    "its own batches",
    "signal / noise",
    "after Adam: norm ×",
    "cosine of the means",
    "verdict",
)
LOST = ("clipped", "masked", "dropped")
SHARES = ("advantage +, −", "length", "passes, 0 up", "position", *LOST)


def _words(verdict: str) -> set[str]:
    """The names of rules in a verdict: "reweights length, steadier" has two."""
    parts = set(verdict.split(", "))
    return parts | {"reweights" for part in parts if part.startswith("reweights")}


def _directions_row(point: AtPoint, arm: str) -> list[str]:
    plain, adam, verdict = point.figures[arm].plain, point.figures[arm].adam, point.verdicts[arm]
    return [
        _number(plain.norm_ratio, 3),
        _with_interval(plain.cosine_batch, plain.cosine_batch_interval),
        _number(plain.cosine_batch_min, 4),
        _with_interval(plain.cosine_mean, plain.cosine_mean_interval),
        _number(plain.self_cosine, 2),
        _steadiness(plain),
        _number(adam.norm_ratio, 3) if adam else "-",
        _number(adam.cosine_mean, 4) if adam else "-",
        f"**{verdict.words}**: {verdict.sentence}",
    ]


def _steadiness(plain: Directions) -> str:
    if plain.signal_to_noise is None:
        return "-"
    text = f"{plain.signal_to_noise:.2f}"
    if plain.steadiness is None:
        return text
    interval = plain.steadiness_interval
    within = f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else ""
    return f"{text} (× {plain.steadiness:.2f}{within})"


def _shares_row(point: AtPoint, arm: str) -> list[str]:
    figures = point.figures[arm]
    shares = [" ".join(f"{100 * share:.0f}" for share in figures.shares[name]) for name in BY]
    return [*shares, *(f"{100 * figures.tokens[name]:.1f}" for name in LOST)]


def _module_names(point: AtPoint) -> list[str]:
    """Kinds first, then layers."""
    known = next(iter(point.figures.values())).modules
    return sorted(known, key=lambda name: name.startswith("layer "))


def _modules_row(point: AtPoint, arm: str) -> list[str]:
    modules = [point.figures[arm].modules[name] for name in _module_names(point)]
    return [f"{_number(m['cosine'], 2)} ({_number(m['norm_ratio'], 2)})" for m in modules]


def _with_interval(value: float, interval: tuple[float, float] | None) -> str:
    if interval is None:
        return _number(value, 4)
    low, high = (max(-1.0, min(1.0, end)) for end in interval)
    return f"{_number(value, 4)} [{_number(low, 3)}, {_number(high, 3)}]"


def _number(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _without_nan(one) for key, one in value.items()}
    return [_without_nan(one) for one in value] if isinstance(value, (list, tuple)) else value
