"""One run in five steps: claim its folder, check what to resume, prepare, record, train.

Nothing is written before the folder is locked, and an earlier run in it is neither resumed nor
overwritten before the new start has a trainer.
"""

import copy
import dataclasses
import hashlib
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate.utils import gather_object
from rich.console import Console
from transformers.trainer_utils import SchedulerType
from transformers.utils.logging import disable_progress_bar

from trl_ablate.errors import PublishError
from trl_ablate.guard.rules import NONFINITE
from trl_ablate.recipe.resolving import Resolved
from trl_ablate.rewards import grader_of
from trl_ablate.run import checkpoints, failures, identity
from trl_ablate.run.directory import (
    OF_A_STOP,
    PREEMPTED,
    Mode,
    Outcome,
    RunDirectory,
    claimed,
    delete,
)
from trl_ablate.run.json_files import read_object
from trl_ablate.run.masking import Masker, known_secrets
from trl_ablate.run.termination import Termination
from trl_ablate.run.untrusted import on_one_line
from trl_ablate.trainer.ablation import AblationTrainer
from trl_ablate.training import callbacks
from trl_ablate.training.building import build_trainer
from trl_ablate.training.dashboard import export_static
from trl_ablate.training.guard_callback import GuardCallback
from trl_ablate.training.machine import check_device

FINGERPRINTED = 256
"""Values of each weight."""


@dataclass(frozen=True)
class Start:
    resolved: Resolved
    mode: Mode
    console: Console
    termination: Termination
    command: Sequence[str]

    @property
    def directory(self) -> RunDirectory:
        return RunDirectory(Path(str(self.resolved.config.output_dir)))

    @property
    def is_main(self) -> bool:
        return self.resolved.config.process_index == 0


class Prepared(NamedTuple):
    trainer: AblationTrainer
    best: callbacks.BestCheckpoint
    guard: GuardCallback
    preemption: callbacks.Preemption


def run(start: Start) -> Outcome:
    """Do a run, from the lock on its folder to its last checkpoint; how it ended."""
    with ExitStack() as held:
        if start.is_main:
            held.enter_context(claim(start))
        masker = masker_of(start)
        settings = masker.value(start.resolved.to_dict())
        now = identity.portable(settings["settings"], settings.get("files", {}))
        checkpoint, changed = to_resume(start, now)
        resolved = for_training(start, checkpoint)
        prepared, recorded = prepare(start, resolved), record(start, resolved, masker)
        earlier = start.directory.traces()  # a failed start leaves an earlier run as it is
        ready = held.enter_context(prepared) if earlier else None
        begin_record(start, settings, changed, checkpoint)
        outcome = held.enter_context(recorded)
        ready = ready or held.enter_context(prepared)
        train(start, ready, checkpoint, outcome)
    start.termination.noted_only = False
    return outcome


def claim(start: Start) -> AbstractContextManager[None]:
    """Check everything that does not need the folder; the lock on the folder."""
    config = start.resolved.config
    check_device(start.resolved)
    if config.push_to_hub:
        from trl_ablate.hub import check_name, check_token  # matplotlib takes long to import

        check_name(config.hub_model_id)
        check_token(config.hub_token)
    return claimed(start.directory, start.mode)


def to_resume(start: Start, settings: dict[str, Any]) -> tuple[Path | None, dict[str, list[Any]]]:
    """The checkpoint to resume from, and the settings that have changed since the run was started.
    Refuses what would make another run; nothing is changed."""
    if start.mode != "resume":
        return None, {}
    directory, config = start.directory, start.resolved.config
    checkpoint = checkpoints.agreed_checkpoint(directory.path, gather_object)
    if not start.is_main:
        return checkpoint, {}
    changed: dict[str, list[Any]] = {}
    if directory.traces():
        changed = identity.changed_settings(directory.settings(), settings)
        before = read_object(directory.config_file).get("config") or {}
        defining = changed | identity.changed_batches(before, vars(config))
        schedule = SchedulerType(config.lr_scheduler_type).value
        identity.check_same_run(directory.path, defining, schedule)
    if checkpoint is None:
        checkpoints.check_something_to_resume(directory)
    else:
        checkpoints.check_record(directory, checkpoint, config.best_metric)
    start.console.print(f"resuming from {checkpoint or 'the start: no checkpoint was saved'}")
    return checkpoint, changed


def for_training(start: Start, checkpoint: Path | None) -> Resolved:
    """A copy of the settings for TRL, without publishing, which this package does itself, and
    without the token, which no checkpoint may hold."""
    config = copy.copy(start.resolved.config)
    config.push_to_hub, config.hub_token = False, None
    config.hub_private_repo = config.hub_private_repo is not False
    evaluates = config.eval_strategy != "no"  # else there is no set to evaluate
    config.eval_on_start = evaluates and config.eval_on_start and checkpoint is None
    directory = start.directory
    # trackio merges runs of the same name: a new one, or after a resume the same as before
    before = directory.record().get("run_name") if start.mode == "resume" else None
    wanted = config.run_name or directory.path.name
    config.run_name = before or f"{wanted}-{uuid.uuid4().hex[:6]}"
    return dataclasses.replace(start.resolved, config=config)


def begin_record(
    start: Start, settings: dict[str, Any], changed: dict[str, list[Any]], checkpoint: Path | None
) -> None:
    """Delete a run that is overwritten, or what one that is resumed recorded after the checkpoint;
    write the settings, and which of them have changed."""
    if not start.is_main:
        return
    directory = start.directory
    if start.mode == "overwrite":
        delete(directory)
    elif start.mode == "resume":
        checkpoints.rewind(directory, checkpoint)
    if changed:  # recorded first: once the new settings are written, nothing shows the change
        start.console.print(f"resuming with changed settings: {identity.described(changed)}")
        step = checkpoints.step_of(checkpoint) if checkpoint else 0
        entry = {"at": identity.utc_now(), "step": step, "settings": changed}
        history = directory.read().get("changed_settings", [])
        directory.update(changed_settings=[*history, entry])
    directory.write_config(settings)


def masker_of(start: Start) -> Masker:
    settings, token = start.resolved.settings, start.resolved.config.hub_token
    return Masker(known_secrets([settings], start.command, token), hide_home=False)


@contextmanager
def record(start: Start, resolved: Resolved, masker: Masker) -> Iterator[Outcome]:
    """Keep `run.json` up to date until the run ends: what identifies the run, its code and its
    machine, and at last how it ended."""
    if not start.is_main:
        yield Outcome()
        return
    config = resolved.config
    gpus = config.world_size if config.device.type == "cuda" else 0
    entries = {
        "recipe": resolved.recipe.name,
        "profile": resolved.profile,
        **{name: vars(config)[name] for name in ("arm", "study", "seed", "run_name")},
        "command": masker.words(start.command),
        **identity.provenance(),
        "gpus": gpus,
        **({"gpu": torch.cuda.get_device_name(config.device)} if gpus else {}),
    }
    with start.directory.recorded(clean=masker.text, **masker.value(entries)) as outcome:
        yield outcome


@contextmanager
def prepare(start: Start, resolved: Resolved) -> Iterator[Prepared]:
    directory, config = start.directory, resolved.config
    disable_progress_bar()  # `LiveLine` is shown instead
    live = callbacks.LiveLine(start.console)
    per_step = config.grpo_steps_per_optimizer_step
    guard = GuardCallback(resolved.guard, run=directory, per_step=per_step, console=start.console)
    preemption = callbacks.Preemption(start.termination)
    with closing(live), grader_of(resolved.task) as grader:
        trainer = build_trainer(resolved, grader)
        saved = (directory, config.num_rollouts_saved, config.seed)
        rollouts = callbacks.RolloutWriter(trainer, *saved)
        best = callbacks.BestCheckpoint(trainer, directory, config.best_metric)
        for callback in (guard, rollouts, best, live, preemption):
            trainer.add_callback(callback)
        yield Prepared(trainer, best, guard, preemption)


def train(start: Start, ready: Prepared, checkpoint: Path | None, outcome: Outcome) -> None:
    """Train to the end, or until the guard, SIGTERM or NaN weights end it."""
    trainer = ready.trainer
    if start.is_main and checkpoint is None:
        start.directory.update(start_weights=fingerprint(trainer.model))
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except SystemExit as error:
        raise failures.ended_by_exit(error) from error
    except RuntimeError as error:
        if not failures.is_divergence(error):
            raise
        step = grpo_steps_of(trainer)
        outcome.stopped(failures.DIVERGED.format(step=step), diverged_at=step)
        return
    if alert := ready.guard.stopped_by:
        diverged = {"diverged_at": grpo_steps_of(trainer)} if alert.rule == NONFINITE else {}
        numbers = {name: one for name, one in vars(alert).items() if name in OF_A_STOP}
        outcome.stopped(f"guard: {alert.sentence}", **numbers, **diverged)
    if ready.preemption.ended_run:
        outcome.stopped(PREEMPTED)
    reached, wanted = trainer.state.global_step, trainer.state.max_steps
    if outcome.status == "finished" and reached < wanted:
        raise failures.EndedEarly(failures.ENDED_EARLY.format(reached=reached, wanted=wanted))
    callbacks.save_whole(trainer, start.directory.checkpoint_last)
    ready.best.check()


def fingerprint(model: Any) -> str | None:
    """A hash of the first values of every weight, without adapters, which are drawn by the seed;
    None where another process holds the weights."""
    digest = hashlib.sha256()
    for name, weight in model.named_parameters():
        if weight.is_meta or not weight.numel():
            return None
        if "lora_" not in name:
            first = weight.detach().flatten()[:FINGERPRINTED]
            digest.update(first.to("cpu", torch.float32).numpy().tobytes())
    return digest.hexdigest()[:12]


def grpo_steps_of(trainer: AblationTrainer) -> float:
    return float(trainer.state.global_step * trainer.args.grpo_steps_per_optimizer_step)


def publish(start: Start) -> Iterator[str]:
    """Publish a finished run as configured; yields a line for each place. A failure is a
    `PublishError`, which names the command that publishes the run later."""
    from trl_ablate.hub import publish_command, push_run

    config = start.resolved.config
    private = config.hub_private_repo is not False
    place = (start.directory, config.hub_model_id, private)
    try:
        url = push_run(*place, token=config.hub_token, revision=config.hub_revision)
    except PublishError:
        raise
    except Exception as error:
        why = on_one_line(masker_of(start).text(str(error)))
        raise PublishError(
            f"the run has ended but is not published: {why}; fix this, then run "
            f"`{publish_command(*place, config.hub_revision)}`"
        ) from error
    yield f"published at {url}"
    if space := export_static(config, private):
        yield f"dashboard at https://huggingface.co/spaces/{space}"
