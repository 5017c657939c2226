"""Train one arm: `accelerate launch scripts/train.py recipes/std_dev_off.yaml [--key value ...]`.

Any setting can be given on the command line and wins over the recipe; `--dry_run` shows what a
recipe comes to and starts nothing; `--doctor` says whether it can run on this machine.
"""

import argparse
import logging
import sys
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl_ablate.cli.terminal import console, show_end, show_findings, show_recipe
from trl_ablate.errors import ConfigurationError
from trl_ablate.run.checkpoints import agreed_checkpoint, changed_settings, check_record, rewind
from trl_ablate.run.directory import PREEMPTED, RunDirectory
from trl_ablate.run.failures import check_reached_the_end, in_words
from trl_ablate.run.provenance import provenance
from trl_ablate.run.termination import Terminated, Termination, end_with_launcher

if TYPE_CHECKING:
    from trl_ablate.run.masking import Masker

REPOSITORY = Path(__file__).resolve().parents[1]

EXIT_PREEMPTED = 75
"""A shell's EX_TEMPFAIL: not done, try again."""


def main() -> int:
    termination = Termination().listen()
    end_with_launcher()
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # a kernel that nobody asked for
    parser = argparse.ArgumentParser(
        description="Train one arm: RECIPE is a YAML file, such as recipes/std_dev_off.yaml.",
        usage="%(prog)s RECIPE [options] [--key value ...]",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--profile", default="auto", help="h100, rtx4090, miniature, auto, or a path"
    )
    parser.add_argument("--dry_run", action="store_true", help="show what resolves, start nothing")
    parser.add_argument("--doctor", action="store_true", help="what the recipe would miss here")
    parser.add_argument("--overwrite", action="store_true", help="replace the run in output_dir")
    parser.add_argument("--resume", action="store_true", help="go on with the run in output_dir")
    options, overrides = parser.parse_known_args()
    first = overrides[0] if overrides else "-"
    options.recipe = None if first.startswith("-") else overrides.pop(0)
    if options.recipe is None and not options.doctor:
        parser.error("the recipe comes first; give one, such as recipes/std_dev_off.yaml")
    try:
        if options.doctor:
            return doctor(options, overrides)
        return run(options, overrides, termination)
    except ConfigurationError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except Terminated:
        sys.stderr.write("ended by SIGTERM; --resume goes on from the last checkpoint\n")
        return EXIT_PREEMPTED
    except KeyboardInterrupt:
        sys.stderr.write("stopped; what was finished is kept\n")
        return 130
    except Exception as error:
        said = in_words(error)
        if said is None:
            raise
        sys.stderr.write(f"error: {said}\n")
        return 1


def run(options: argparse.Namespace, overrides: list[str], termination: Termination) -> int:
    if options.dry_run:
        spare_imports()
    from trl_ablate.recipe.resolving import load_recipe

    resolved = load_recipe(options.recipe, profile=options.profile, overrides=overrides)
    main_process = resolved.config.process_index == 0
    if main_process:
        show_recipe(resolved, everything=options.dry_run)
    if options.dry_run:
        return 0
    from trl_ablate.run.masking import Masker, known_secrets

    directory = RunDirectory(Path(str(resolved.config.output_dir)))
    push, resolved.config.push_to_hub = resolved.config.push_to_hub, False  # ours, not TRL's
    token, resolved.config.hub_token = resolved.config.hub_token, None  # or checkpoints hold it
    resolved.config.hub_private_repo = resolved.config.hub_private_repo is not False
    secrets = known_secrets([resolved.settings], sys.argv, token)
    if main_process:
        prepare(directory, resolved, options, push=push, token=token)
        settings = Masker(secrets, hide_home=False).value(resolved.to_dict())
        if options.resume:
            tell_changes(directory, settings)
        directory.write_config(settings)
    resolved.config.run_name = name_of(directory, resolved.config, resume=options.resume)
    checkpoint = where_to_go_on(directory) if options.resume else None
    if main_process and options.resume:
        console.print(f"resuming from {checkpoint or 'the beginning: nothing was saved yet'}")
        rewind(directory, checkpoint)
        if checkpoint:
            check_record(directory, checkpoint, resolved.config.best_metric)
    masker = Masker(secrets)
    described = masker.value(identity(resolved, masker))
    record = directory.recorded(clean=masker.text, **described) if main_process else nullcontext()
    with record as outcome:
        alert, preempted = train(resolved, directory, checkpoint, termination)
        if outcome and preempted:
            outcome.stopped(PREEMPTED)
        elif outcome and alert:
            outcome.stopped(f"guard: {alert.sentence}", **alert.numbers())
    termination.noted_only = False
    if preempted:
        sys.stderr.write("ended by SIGTERM at a checkpoint; --resume goes on from it\n")
        return EXIT_PREEMPTED
    if main_process:
        show_end(directory)
    if main_process and push:
        publish(directory, resolved.config, token)
    return 0


def spare_imports() -> None:
    """Keep out what loads models and adapters: a dry run does neither, and more than half of its
    time would go into importing it. transformers does so to ask whether it runs in Kubeflow."""
    from transformers import integrations

    sys.modules["peft"] = None  # pyright: ignore[reportArgumentType]
    integrations.is_kubeflow_available = lambda: False


def doctor(options: argparse.Namespace, overrides: list[str]) -> int:
    """Say what this machine has and lacks for a recipe; 0 if it can run here, or else 1."""
    from trl_ablate.training import doctor as checks

    requirements, versions = checks.declared(), checks.installed()
    findings = checks.check_packages(requirements, versions)
    if not any(finding.stops for finding in findings):  # or else no recipe resolves
        from trl_ablate.recipe.resolving import load_recipe

        recipe = options.recipe or str(REPOSITORY / "recipes" / "grpo.yaml")
        resolved = load_recipe(recipe, options.profile, overrides)
        show_recipe(resolved, everything=False)
        machine = checks.look_around(Path(str(resolved.config.output_dir)))
        wanted = checks.packages_wanted(resolved)
        findings = checks.check_packages(requirements, versions, wanted)
        findings += checks.check_machine(resolved, machine)
    return show_findings(findings)


def prepare(
    directory: RunDirectory, resolved, options: argparse.Namespace, *, push: bool, token: str | None
) -> None:
    """Everything that can be refused is refused here, before a model is loaded."""
    from trl_ablate.hub import check_token
    from trl_ablate.training.doctor import check_device

    check_device(resolved)
    if push:
        check_token(token)
    directory.prepare(overwrite=options.overwrite, resume=options.resume)


def tell_changes(directory: RunDirectory, config: dict[str, Any]) -> None:
    """Warn of settings that a run goes on with, but was not begun with."""
    if changed := changed_settings(directory.config_file, config["settings"]):
        console.print(f"warning: going on with other settings: {', '.join(changed)}", markup=False)


def where_to_go_on(directory: RunDirectory) -> Path | None:
    from accelerate.utils import gather_object

    return agreed_checkpoint(directory.path, gather_object)


def name_of(directory: RunDirectory, config, *, resume: bool) -> str:
    """The run's name in trackio: its own, and after a resume the same."""
    from trl_ablate.training.dashboard import new_run_name

    before = directory.read() if resume and directory.run_file.exists() else {}
    return before.get("run_name") or new_run_name(config.run_name or directory.path.name)


def train(resolved, directory: RunDirectory, checkpoint: Path | None, termination: Termination):
    """Train to the end; returns the alert that stopped the run, if one did, and whether SIGTERM
    ended it."""
    from transformers.utils.logging import disable_progress_bar

    from trl_ablate.rewards import grader_of
    from trl_ablate.training.building import build_trainer
    from trl_ablate.training.callbacks import (
        BestCheckpoint,
        GuardWatch,
        RolloutWriter,
        RunRecorder,
        save_whole,
    )
    from trl_ablate.training.dashboard import DashboardCheck
    from trl_ablate.training.live import LiveLine
    from trl_ablate.training.preemption import Preemption

    config = resolved.config
    config.eval_on_start = config.eval_on_start and checkpoint is None
    disable_progress_bar()  # ours is the one live line
    live = LiveLine(console)
    recorder = RunRecorder(directory, config.grpo_steps_per_optimizer_step)
    rollouts = RolloutWriter(directory, config.num_rollouts_saved, config.seed)
    best = BestCheckpoint(directory, config.best_metric)
    guard = GuardWatch(directory, resolved.guard, console)
    with (
        closing(live),
        grader_of(resolved.task) as grader,
    ):
        watching = [recorder, rollouts, best, guard, live, DashboardCheck(console)]
        trainer = build_trainer(resolved, grader, watching)
        rollouts.attach(trainer)
        best.attach(trainer)
        preemption = Preemption(termination)
        trainer.add_callback(preemption)
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        if not (guard.stopped_by or preemption.ended_run):
            check_reached_the_end(trainer.state.global_step, trainer.state.max_steps)
        save_whole(trainer, directory.checkpoint_last)
        best.check()
    return guard.stopped_by, preemption.ended_run


def publish(directory: RunDirectory, config, token: str | None) -> None:
    from trl_ablate.hub import push_run
    from trl_ablate.training.dashboard import export_static

    url = push_run(
        directory,
        repo_id=config.hub_model_id,
        private=config.hub_private_repo,
        token=token,
        revision=config.hub_revision,
    )
    console.print(f"published at {url}")
    if space := export_static(config):
        console.print(f"dashboard at https://huggingface.co/spaces/{space}")


def identity(resolved, masker: "Masker") -> dict[str, Any]:
    """Which run this is, and where it comes from."""
    config = resolved.config
    return {
        "recipe": resolved.recipe.name,
        "profile": resolved.profile,
        "arm": config.arm,
        "study": config.study,
        "seed": config.seed,
        "run_name": config.run_name,
        "command": masker.words(sys.argv),
        **provenance(),
        **accelerators(config),
    }


def accelerators(config) -> dict[str, Any]:
    """How many GPUs the run takes, and which."""
    import torch

    if config.device.type != "cuda":
        return {"gpus": 0}
    return {"gpus": config.world_size, "gpu": torch.cuda.get_device_name(config.device)}


if __name__ == "__main__":
    sys.exit(main())
