"""What does the X-ray of a study say? The reader of `xray.json`, without torch."""

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trl_ablate.run.json_files import read_object
from trl_ablate.study.store import RunStore

XRAY = "xray.json"
"""In the folder of an X-ray; beside a `study.yaml`, if there is an X-ray of the study."""


@dataclass(frozen=True)
class Point:
    """What was found of an arm, at one checkpoint."""

    place: str
    verdict: str
    cosine: float | None = None
    """Of the mean gradients."""
    norm_ratio: float | None = None
    steps: int | None = None
    """Optimizer steps per rollout batch."""


@dataclass(frozen=True)
class KnownXray:
    reference: str
    arms: Mapping[str, Sequence[Point]]
    others: Mapping[str, str]
    """What an arm is compared with, where it is not the reference."""
    skipped: Mapping[str, str]
    """Arms out of reach, and why."""

    def against(self, arm: str) -> str:
        return self.others.get(arm, self.reference)

    def distance(self, arm: str) -> float | None:
        """1 - cosine of the mean gradients, averaged over the points."""
        known = [point.cosine for point in self.arms[arm] if point.cosine is not None]
        return 1 - statistics.fmean(known) if known else None

    def same_steps(self, arm: str) -> bool:
        """Whether it and its counterpart take equally many optimizer steps per rollout batch."""
        return self.arms[arm][0].steps == self.arms[self.against(arm)][0].steps


def xray_folder(store: RunStore, study: str) -> Path:
    """Where the X-ray of a study is kept."""
    return store.path / "xray" / study


def read_xray(file: Path) -> KnownXray | None:
    """None if there is none."""
    if not os.path.isfile(file):  # which is false for a name that is too long for a file
        return None
    found = read_object(file)
    return KnownXray(
        reference=str(found.get("reference")),
        arms={arm: [*map(_point, entries)] for arm, entries in found.get("arms", {}).items()},
        others=found.get("against", {}),
        skipped=found.get("skipped", {}),
    )


def _point(entry: Mapping[str, Any]) -> Point:
    drift = entry.get("drift")
    place = f"{entry.get('checkpoint')}{f' + {drift} steps' if drift else ''}"
    numbers = (entry.get(key) for key in ("cosine_mean", "norm_ratio", "optimizer_steps"))
    return Point(place, str(entry.get("verdict")), *numbers)
