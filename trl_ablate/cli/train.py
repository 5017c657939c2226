"""Train one arm.

RECIPE is a YAML file, or the name of a shipped recipe (`trl-ablate recipes` lists them). Every
setting of a recipe can be given as --key value and overrides the recipe.

examples:
  trl-ablate train quickstart
  trl-ablate train std_dev_off --seed 1 --output_dir runs/a --grpo_steps 50
  trl-ablate train std_dev_off --output_dir runs/a --resume
  accelerate launch -m trl_ablate train std_dev_off --profile h100
"""

import argparse
import os
import sys
from collections.abc import Sequence

from trl_ablate.cli.ending import DONE, PREEMPTED
from trl_ablate.cli.imports import put_off, spare_models, to_keep
from trl_ablate.cli.parsing import OF_TRAINING, PROFILE, command, flag, group
from trl_ablate.cli.terminal import console, show_end, show_recipe
from trl_ablate.errors import ConfigurationError
from trl_ablate.recipe.places import recipe_path
from trl_ablate.run import directory
from trl_ablate.run.termination import Termination, end_with_launcher


@command(
    PROFILE,
    flag("--dry_run", "print the resolved settings instead of training"),
    group(
        "a run in output_dir",
        flag("--resume", "continue it"),
        flag("--overwrite", "replace it"),
        exclusive=True,
    ),
    stopped="what was finished is kept",
    settings="RECIPE [options] [--key value ...]",
    resumable=True,
    codes=OF_TRAINING,
)
def main(options: argparse.Namespace, words: list[str]) -> int:
    termination = Termination().listen()
    end_with_launcher()
    recipe = options.parser.take_recipe(words, "std_dev_off")
    put_off()
    if options.dry_run:
        spare_models()
    with to_keep():
        from trl_ablate.recipe.resolving import load_recipe

    refuse_several(recipe, words)
    resolved = load_recipe(recipe, profile=options.profile, overrides=words)
    is_main = resolved.config.process_index == 0
    if is_main:
        show_recipe(resolved, everything=options.dry_run)
    if options.dry_run:
        from trl_ablate.training.machine import check_device

        try:
            check_device(resolved)
        except ConfigurationError as error:
            console.print(f"would be refused here: {error}")
        return DONE
    with to_keep():
        from trl_ablate.training import lifecycle

    mode = "resume" if options.resume else "overwrite" if options.overwrite else "new"
    start = lifecycle.Start(resolved, mode, console, termination, command=sys.argv)
    outcome = lifecycle.run(start)
    if outcome.reason == directory.PREEMPTED:
        rest = "; --resume continues from it" * (not resolved.config.save_only_model)
        sys.stderr.write(f"ended by SIGTERM at a checkpoint{rest}\n")
        return PREEMPTED
    if is_main:
        show_end(start.directory, on_trackio="trackio" in (resolved.config.report_to or ()))
    if is_main and resolved.config.push_to_hub:
        for line in lifecycle.publish(start):
            console.print(line)
    return DONE


def refuse_several(recipe: str, words: Sequence[str]) -> None:
    """Refuse several values for a setting that takes one, with the study that compares them."""
    from trl_ablate.recipe.overrides import takes_one_of, words_of_settings

    several = {
        name: f"[{', '.join(values)}]"
        for name, values in words_of_settings(words)
        if takes_one_of(name, values)
    }
    if not several:
        return
    given = ", ".join(f"{name}: {values}" for name, values in several.items())
    seeds = several.pop("seed", "[0, 1, 2]")
    factors = ", ".join(f"{name}: {values}" for name, values in several.items())
    path = recipe if os.path.exists(recipe) else recipe_path(recipe).name
    arms = f"recipe: {path}\nfactors: {{{factors}}}" if several else f"arms: [{path}]"
    raise ConfigurationError(
        f"a run has one value of each setting, and this one is given {{{given}}}; give one, or "
        "compare them in a study.yaml, with the other settings as `overrides: {key: value}`:\n\n"
        f"question: Which is better?\n{arms}\nseeds: {seeds}"
    )
