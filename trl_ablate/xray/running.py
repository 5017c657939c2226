"""The X-ray: rollouts once, then every arm's gradient on them, then figures and verdicts.

OUTPUT/rollouts/base/          the rollouts of a point; see `stored_rollouts.py`
OUTPUT/gradients/base/         sketches of every arm's gradients; what is there is not repeated
OUTPUT/xray.json, XRAY.md, xray.png
"""

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import PartialState

from trl_ablate.errors import ConfigurationError
from trl_ablate.recipe.resolving import Resolved
from trl_ablate.rewards import grader_of
from trl_ablate.xray.chosen_arms import XrayArm, arms_of, chosen, out_of_reach, scores_again
from trl_ablate.xray.drawing import drawn
from trl_ablate.xray.figures import Verdict, figures_of, floor_of, verdict_of
from trl_ablate.xray.gradients import TakenGradients, key_of
from trl_ablate.xray.taking import ADAM_EPS, Point, stored_divisors, take, walk
from trl_ablate.xray.trainer import Sources
from trl_ablate.xray.xray_page import AtPoint, Xray, XrayedPoint

Say = Callable[[str], object]
REFERENCE = Verdict("reference", "it draws the rollouts", {})
NOT_FINITE = Verdict(
    "not finite", "the gradient, or the reference's, is infinite or NaN on some rollout batch", {}
)


def xray(
    arms: str | os.PathLike | Sequence[str | os.PathLike] | Mapping[str, Resolved],
    checkpoints: Iterable[str | os.PathLike] = (),
    batches: int = 8,
    *,
    drift: int = 0,
    reference: str | None = None,
    profile: str | None = None,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    seed: int = 0,
    output: str | os.PathLike | None = None,
    rollouts: str | os.PathLike | None = None,
    say: Say | None = None,
) -> Xray:
    """Compare the gradients that arms take on the same rollouts.

    Args:
        arms: recipes, recipes with overrides (`no_baseline+length_norm=constant`), or a study; or
            resolved recipes by name. All checkpoints must be of the reference's model.
        checkpoints: `checkpoint-N` folders of runs; none: the model that the reference starts from.
        batches: rollout batches at each checkpoint.
        drift: also take the gradients this many optimizer steps of the reference away.
        reference: the arm that all others are compared with, and that draws the rollouts; default:
            the first arm, and in a study, the arm that it compares each with.
        profile: as for `train`; default: that of the study or the recipe.
        overrides: settings for every arm, as for `train`.
        output: folder to write to and to continue from; None: nothing is kept.
        rollouts: a folder of stored rollouts of an earlier X-ray, to use in place of new ones; or a
            run's rollouts/STEP.jsonl, if the run saved whole batches.
        say: is given a line for each step.
    """
    found = arms_of(arms, profile, overrides)
    first = chosen(found, reference)
    skipped = {arm.name: why for arm in found if (why := out_of_reach(arm, first))}
    kept = [first, *(arm for arm in found if arm is not first and arm.name not in skipped)]
    places, given = [Path(one) for one in checkpoints], Path(rollouts) if rollouts else None
    is_main = first.resolved.config.process_index == 0
    say = say if say and is_main else lambda text: None
    _check(kept, skipped, places, batches, drift, seed, given)
    if output is None and first.resolved.config.world_size > 1:
        raise ConfigurationError("with several processes an X-ray needs an output folder; give one")
    for name, why in skipped.items():
        say(f"{name}: out of reach of the comparison: it {why}")
    place = tempfile.TemporaryDirectory(prefix="xray-") if output is None else nullcontext(output)
    with place as entered:
        folder = Path(entered)
        folder.mkdir(parents=True, exist_ok=True)
        against = references_of(kept, first, reference)
        comparison = _Comparison(kept, first, against, folder, batches, seed, say)
        points = [
            comparison.at(Point(place, steps), given)
            for place in places or [None]
            for steps in ((0, drift) if drift else (0,))
        ]
        result = Xray(first.name, against, points, skipped, batches, seed)
        if output is not None and is_main:
            result.write(folder)
    return result


@dataclass(frozen=True)
class _Comparison:
    """What stays the same from point to point."""

    arms: Sequence[XrayArm]
    reference: XrayArm
    """Draws the rollouts."""
    against: Mapping[str, str]
    """Each arm, and the arm that it is compared with."""
    folder: Path
    batches: int
    seed: int
    say: Say

    def at(self, point: Point, given: Path | None) -> XrayedPoint:
        """The figures of all arms at one point."""
        whole = point.checkpoint and point.checkpoint.resolve()
        label = _slug(f"{whole.parent.name}-{whole.name}") if whole else "base"
        with grader_of(self.reference.resolved.task) as grader:
            self.say(f"{point.name}: rollouts")
            sources, about = drawn(
                self.reference, point, self.folder / "rollouts" / label, grader, given=given,
                batches=self.batches, seed=self.seed, work=self.folder / "work",
            )  # fmt: skip
            taken, notes = self._take_all(point, sources, about, label)
        for note in notes:
            self.say(f"{point.name}: {note}")
        return self._judged(point, taken, notes)

    def _take_all(
        self, point: Point, sources: Sources, about: dict[str, Any], label: str
    ) -> tuple[dict[str, TakenGradients], list[str]]:
        """The gradients of all arms, those that are stored read, and the notes of the point."""
        place = self.folder / "gradients" / (label + f"-drift-{point.drift}" * bool(point.drift))
        config = self.reference.resolved.config
        depends_on = {
            "reference": self.reference.settings,
            "rollouts": str(sources.folder.path.resolve()),
            "about": about,
            "batches": self.batches,
            "drift": point.drift,
            "processes": config.world_size,
            "format": 2,
        }
        known: dict[str, TakenGradients] = {}
        missing: list[tuple[XrayArm, Path, str]] = []
        for arm in self.arms:
            file = place / f"{_slug(arm.name)}.npz"
            key = key_of({"arm": arm.settings, "files": arm.files, **depends_on})
            if taken := TakenGradients.read(file, key):
                known[arm.name] = taken
            else:
                missing.append((arm, file, key))
        note_file = place / "notes.txt"
        PartialState().wait_for_everyone()
        if not missing and note_file.exists():
            return known, note_file.read_text(encoding="utf-8").splitlines()
        point, notes = self._prepared(point, sources)
        if config.process_index == 0:
            place.mkdir(parents=True, exist_ok=True)
            note_file.write_text("\n".join(notes), encoding="utf-8")
        for arm, file, key in missing:
            self.say(f"{point.name}{f' + {point.drift}' * bool(point.drift)}: {arm.name}")
            again = scores_again(arm, self.reference)
            known[arm.name], _ = take(arm.resolved, point, sources, scores_again=again)
            if config.process_index == 0:
                known[arm.name].write(file, key)
        return known, notes

    def _prepared(self, point: Point, sources: Sources) -> tuple[Point, list[str]]:
        """The point with its weights and its optimizer's divisors, and notes on these."""
        resolved = self.reference.resolved
        if point.drift:
            self.say(f"{point.name}: the reference walks {point.drift} optimizer steps")
            point = walk(resolved, point, sources)
        else:
            point = replace(point, divisors=stored_divisors(resolved, point, sources))
        if point.divisors is not None or not is_adam(resolved):
            return point, []
        _, taker = take(resolved, point, sources, estimates=True)
        note = (
            f"{point.name} has no plain second moments (optimizer.pt); they are estimated from the "
            "reference's gradients"
        )
        return replace(point, divisors=taker.estimated(ADAM_EPS)), [note]

    def _judged(
        self, point: Point, taken: Mapping[str, TakenGradients], notes: Sequence[str]
    ) -> XrayedPoint:
        steps = {arm.name: arm.resolved.config.optimizer_steps_per_rollout for arm in self.arms}
        adam, found = is_adam(self.reference.resolved), {}
        for name, other in self.against.items():
            figures, floor = figures_of(taken[name], taken[other]), floor_of(taken[other])
            verdict = verdict_of(figures, floor, adam=adam, steps=steps[name] / steps[other])
            if name == other:
                verdict = REFERENCE
            elif not all(np.isfinite(taken[one].norms_BK).all() for one in (name, other)):
                verdict = NOT_FINITE
            seconds = float(taken[name].seconds_B.mean())
            found[name] = AtPoint(figures, verdict, steps[name], seconds)
        floor = floor_of(taken[self.reference.name])
        return XrayedPoint(point.name, point.drift, floor, found, notes)


def references_of(arms: Sequence[XrayArm], first: XrayArm, named: str | None) -> dict[str, str]:
    """Each arm, and the arm that it is compared with: the named one, or that of its study, or the
    first. The first is compared with itself, also where a study compares it with another."""
    names = {arm.name for arm in arms}
    own = {} if named else {arm.name: arm.against for arm in arms if arm.against in names}
    return {arm.name: (arm is not first and own.get(arm.name)) or first.name for arm in arms}


def is_adam(resolved: Resolved) -> bool:
    return "adam" in str(resolved.config.optim).lower()


def _slug(name: str) -> str:
    return re.sub(r"[^\w.=+-]+", "_", name)


def _check(
    kept: Sequence[XrayArm],
    skipped: Mapping[str, str],
    checkpoints: Sequence[Path],
    batches: int,
    drift: int,
    seed: int,
    rollouts: Path | None,
) -> None:
    """Refuse what cannot be compared, before anything is loaded."""
    first = kept[0].name
    if first in skipped:
        raise ConfigurationError(
            f"nothing can be compared with '{first}', whose rollouts all arms train on: "
            f"{skipped[first]}; name another arm first, or as --reference"
        )
    if len(kept) < 2:
        why = "; ".join(f"{name} {reason}" for name, reason in skipped.items())
        raise ConfigurationError(
            f"no arm is left to compare with '{first}'{f': {why}' if why else ''}; name arms that "
            "differ in the objective alone"
        )
    if batches < 1 or drift < 0:
        raise ConfigurationError(
            f"--batches is {batches} and --drift is {drift}; give 1 or more, and 0 or more"
        )
    if not 0 <= seed < 2**32:
        raise ConfigurationError(f"--xray_seed is {seed}; give a number from 0 to {2**32 - 1}")
    for checkpoint in checkpoints:
        if not checkpoint.is_dir():
            raise ConfigurationError(
                f"the checkpoint {checkpoint} does not exist; give a checkpoint-N folder of a run"
            )
    if rollouts is not None and not rollouts.exists():
        raise ConfigurationError(f"--rollouts {rollouts} does not exist; check the path")
    if rollouts is not None and len(checkpoints) > 1:
        raise ConfigurationError(
            "--rollouts are those of one checkpoint, and several are given; give one"
        )
