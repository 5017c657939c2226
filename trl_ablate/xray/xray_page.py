"""The result of an X-ray: JSON, Markdown and a picture."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trl_ablate.run.json_files import write_json
from trl_ablate.run.untrusted import for_markdown, markdown_table
from trl_ablate.study.report.xray_section import label_of
from trl_ablate.xray.figures import ArmFigures, Directions
from trl_ablate.xray.judging import NAMED, RULES, Verdict

LOST = ("clipped", "masked", "dropped")


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
        return f"{self.checkpoint} + {self.drift} optimizer steps" if self.drift else (
            self.checkpoint
        )  # fmt: skip


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
            "arms": {arm: [_entry(point, arm) for point in self.points] for arm in self.arms},
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

    def write(self, folder: Path) -> list[Path]:
        """Write xray.json, XRAY.md and xray.png; the written files."""
        from trl_ablate.xray.plots import draw

        write_json(folder / "xray.json", self.to_dict())
        (folder / "XRAY.md").write_text(
            self.markdown()
            + "\n![cosine against norm ratio, and who gets the gradient](xray.png)\n",
            encoding="utf-8",
        )
        (folder / "xray.png").write_bytes(draw(self))
        return [folder / name for name in ("xray.json", "XRAY.md", "xray.png")]

    def _at(self, point: AtPoint) -> list[str]:
        floor = "none" if point.floor is None else f"{point.floor:.3f}"
        return [
            f"Noise floor of a cosine of 1: {floor}.",
            *map(for_markdown, point.notes),
            _directions_table(point, self.labels),
            "Who gets the gradient (shares of the pushes on tokens, in %; quarters from the "
            "shortest response, and from its first token):",
            _shares_table(point, self.labels),
            "By module, cosine of the mean gradients (norm ratio):",
            _modules_table(point, self.labels),
        ]


def _words(verdict: str) -> set[str]:
    """The names of rules in a verdict: "reweights length, steadier" has two."""
    parts = set(verdict.split(", "))
    return parts | {"reweights" for part in parts if part.startswith("reweights")}


def _entry(point: AtPoint, arm: str) -> dict[str, Any]:
    figures, verdict = point.figures[arm], point.verdicts[arm]
    plain = figures.plain
    return {
        "checkpoint": point.checkpoint,
        "drift": point.drift,
        "norm_ratio": plain.norm_ratio,
        "cosine_batch": plain.cosine_batch,
        "cosine_batch_min": plain.cosine_batch_min,
        "cosine_mean": plain.cosine_mean,
        "self_cosine": plain.self_cosine,
        "verdict": verdict.words,
        "reweights": {name: verdict.reweights.get(name, 0.0) for name in NAMED},
        "sentence": verdict.sentence,
        "cosine_batch_interval": plain.cosine_batch_interval,
        "cosine_mean_interval": plain.cosine_mean_interval,
        "signal": plain.signal,
        "noise": plain.noise,
        "signal_to_noise": plain.signal_to_noise,
        "steadiness": plain.steadiness,
        "steadiness_interval": plain.steadiness_interval,
        "preconditioned": figures.adam and dataclasses.asdict(figures.adam),
        "modules": figures.modules,
        "shares": figures.shares,
        "shifts": figures.shifts,
        "tokens": figures.tokens,
        "optimizer_steps": point.steps[arm],
        "seconds_per_batch": point.seconds[arm],
    }


def _directions_table(point: AtPoint, labels: Mapping[str, str]) -> str:
    header = [
        "arm", "norm ×", "cosine, same batch", "lowest", "cosine of the means", "its own batches",
        "signal / noise", "after Adam: norm ×", "cosine of the means", "verdict",
    ]  # fmt: skip
    return markdown_table(header, [_directions_row(point, *one) for one in labels.items()])


def _directions_row(point: AtPoint, arm: str, label: str) -> list[str]:
    figures, verdict = point.figures[arm], point.verdicts[arm]
    plain, adam = figures.plain, figures.adam
    return [
        for_markdown(label),
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


def _shares_table(point: AtPoint, labels: Mapping[str, str]) -> str:
    header = ["arm", "advantage +, −", "length", "passes, 0 up", "position", *LOST]
    rows = []
    for arm, label in labels.items():
        figures = point.figures[arm]
        shares = [
            _percents(figures.shares[n]) for n in ("sign", "length", "difficulty", "position")
        ]
        lost = [f"{100 * figures.tokens[name]:.1f}" for name in LOST]
        rows.append([for_markdown(label), *shares, *lost])
    return markdown_table(header, rows)


def _modules_table(point: AtPoint, labels: Mapping[str, str]) -> str:
    known = next(iter(point.figures.values())).modules
    names = sorted(known, key=lambda name: name.startswith("layer "))  # kinds first
    rows = []
    for arm, label in labels.items():
        modules = [point.figures[arm].modules[name] for name in names]
        cells = [f"{_number(m['cosine'], 2)} ({_number(m['norm_ratio'], 2)})" for m in modules]
        rows.append([for_markdown(label), *cells])
    return markdown_table(["arm", *names], rows)


def _percents(shares: Sequence[float]) -> str:
    return " ".join(f"{100 * share:.0f}" for share in shares)


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
