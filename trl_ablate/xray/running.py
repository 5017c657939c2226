"""The X-ray: rollouts once, then every arm's gradient on them, then figures and verdicts.

OUTPUT/rollouts/base/          the rollouts of a point; see `rollouts.py`
OUTPUT/gradients/base/         sketches of every arm's gradients; what is there is not repeated
OUTPUT/xray.json, XRAY.md, xray.png
"""

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trl_ablate.errors import ConfigurationError
from trl_ablate.recipe.resolving import Resolved
from trl_ablate.rewards import grader_of
from trl_ablate.xray.chosen_arms import XrayArm, arms_of, chosen, out_of_reach, scores_again
from trl_ablate.xray.drawing import drawn, wait
from trl_ablate.xray.figures import ArmFigures, figures_of, floor_of
from trl_ablate.xray.gradients import TakenGradients, key_of
from trl_ablate.xray.judging import Verdict, verdict_of
from trl_ablate.xray.taking import ADAM_EPS, Point, Sources, stored_moments, take, walk
from trl_ablate.xray.xray_page import AtPoint, Xray

Say = Callable[[str], object]
REFERENCE = Verdict("reference", "it draws the rollouts", {})


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
        reference: the arm that all others are compared with; default: in a study, the arm that it
            compares each with; otherwise the first arm. It draws the rollouts; by default, the
            first arm does.
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
    if say is None or first.resolved.config.process_index != 0:
        say = _nothing
    _check(kept, skipped, [Path(one) for one in checkpoints], batches, drift, rollouts)
    for name, why in skipped.items():
        say(f"{name}: out of reach of the comparison: it {why}")
    with _folder(output, first) as folder:
        against = references_of(kept, first, reference)
        machine = _Machine(kept, first, against, folder, batches, seed, say)
        places = [Path(one) for one in checkpoints] or [None]
        results = [
            machine.at(place, steps, Path(rollouts) if rollouts else None)
            for place in places
            for steps in ((0, drift) if drift else (0,))
        ]
        result = Xray(first.name, against, results, skipped, batches, seed)
        if output is not None and machine.is_main:
            result.write(Path(output))
    return result


@dataclass
class _Machine:
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

    @property
    def is_main(self) -> bool:
        return self.reference.resolved.config.process_index == 0

    def at(self, checkpoint: Path | None, drift: int, given: Path | None) -> AtPoint:
        """The figures of all arms at one point."""
        point = Point(checkpoint, drift)
        label = label_of(checkpoint)
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
        place = self.folder / "gradients" / (label + f"-drift-{point.drift}" * bool(point.drift))
        depends_on = {
            "reference": self.reference.settings,
            "rollouts": str(sources.folder.path.resolve()),
            "about": about,
            "batches": self.batches,
            "drift": point.drift,
            "processes": self.reference.resolved.config.world_size,
        }
        files = {
            arm.name: (
                place / f"{_slug(arm.name)}.npz",
                key_of({"arm": arm.settings, **depends_on}),
            )
            for arm in self.arms
        }
        taken = {name: TakenGradients.read(*where) for name, where in files.items()}
        note_file = place / "notes.txt"
        wait()
        if None not in taken.values() and note_file.exists():
            notes = note_file.read_text(encoding="utf-8").splitlines()
            return {name: one for name, one in taken.items() if one}, notes
        point = self._prepared(point, sources)
        if self.is_main:
            place.mkdir(parents=True, exist_ok=True)
            note_file.write_text("\n".join(point.notes), encoding="utf-8")
        found: dict[str, TakenGradients] = {}
        for arm in self.arms:
            known = taken[arm.name]
            if known is None:
                self.say(f"{point.name}{f' + {point.drift}' * bool(point.drift)}: {arm.name}")
                again = scores_again(arm, self.reference)
                known, _ = take(arm.resolved, point, sources, scores_again=again)
                if self.is_main:
                    known.write(*files[arm.name])
            found[arm.name] = known
        return found, point.notes

    def _prepared(self, point: Point, sources: Sources) -> Point:
        """The point with its weights and its optimizer's second moments."""
        resolved = self.reference.resolved
        if point.drift:
            self.say(f"{point.name}: the reference walks {point.drift} optimizer steps")
            point = walk(resolved, point, sources)
        else:
            point.moments = stored_moments(resolved, point, sources)
        if point.moments is None and is_adam(resolved):
            where = f"{point.name} has no plain second moments (optimizer.pt)"
            point.notes.append(f"{where}; they are estimated from the reference's gradients")
            _, taker = take(resolved, point, sources, estimates=True)
            point.moments = taker.estimate(ADAM_EPS)
        return point

    def _judged(self, point: Point, taken: dict[str, TakenGradients], notes: list[str]) -> AtPoint:
        steps = {arm.name: arm.resolved.config.optimizer_steps_per_rollout for arm in self.arms}
        floors = {name: floor_of(one) for name, one in taken.items()}
        adam = is_adam(self.reference.resolved)
        figures: dict[str, ArmFigures] = {}
        verdicts = {}
        for name, other in self.against.items():
            figures[name] = found = figures_of(taken[name], taken[other])
            ratio = steps[name] / steps[other]
            judged = verdict_of(found, floors[other], adam=adam, steps=ratio)
            verdicts[name] = REFERENCE if name == other else judged
        seconds = {name: float(one.seconds_B.mean()) for name, one in taken.items()}
        floor = floors[self.reference.name]
        return AtPoint(point.name, point.drift, floor, figures, verdicts, seconds, steps, notes)


def references_of(arms: Sequence[XrayArm], first: XrayArm, named: str | None) -> dict[str, str]:
    """Each arm, and the arm that it is compared with: the named one, or that of its study, or the
    first. The first is compared with itself, also where a study compares it with another."""
    names = {arm.name for arm in arms}
    own = {} if named else {arm.name: arm.against for arm in arms if arm.against in names}
    return {arm.name: (arm is not first and own.get(arm.name)) or first.name for arm in arms}


def _nothing(text: str) -> None:
    """Other processes than the first print nothing."""


def is_adam(resolved: Resolved) -> bool:
    return "adam" in str(resolved.config.optim).lower()


def label_of(checkpoint: Path | None) -> str:
    """A name for a folder: run and checkpoint."""
    if checkpoint is None:
        return "base"
    whole = checkpoint.resolve()
    return _slug(f"{whole.parent.name}-{whole.name}")


def _slug(name: str) -> str:
    return re.sub(r"[^\w.=+-]+", "_", name)


def _check(
    kept: Sequence[XrayArm],
    skipped: Mapping[str, str],
    checkpoints: Sequence[Path],
    batches: int,
    drift: int,
    rollouts: Any,
) -> None:
    """Refuse what cannot be compared, before anything is loaded."""
    if len(kept) < 2:
        why = "; ".join(f"{name} {reason}" for name, reason in skipped.items())
        raise ConfigurationError(
            f"no arm is left to compare with '{kept[0].name}'{f': {why}' if why else ''}; name "
            "arms that differ in the objective alone"
        )
    if batches < 1 or drift < 0:
        raise ConfigurationError(
            f"--batches is {batches} and --drift is {drift}; give 1 or more, and 0 or more"
        )
    for checkpoint in checkpoints:
        if not checkpoint.is_dir():
            raise ConfigurationError(
                f"the checkpoint {checkpoint} does not exist; give a checkpoint-N folder of a run"
            )
    if rollouts is not None and len(checkpoints) > 1:
        raise ConfigurationError(
            "--rollouts are those of one checkpoint, and several are given; give one"
        )


@contextmanager
def _folder(output: str | os.PathLike | None, reference: XrayArm):
    """The folder to work in; without an output, a temporary one."""
    if output is not None:
        Path(output).mkdir(parents=True, exist_ok=True)
        yield Path(output)
    elif reference.resolved.config.world_size > 1:
        raise ConfigurationError("with several processes an X-ray needs an output folder; give one")
    else:
        with tempfile.TemporaryDirectory(prefix="xray-") as folder:
            yield Path(folder)
