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
import sys

from trl_ablate.cli.ending import DONE, PREEMPTED
from trl_ablate.cli.imports import put_off, spare_models, to_keep
from trl_ablate.cli.parsing import Command, Parser
from trl_ablate.cli.terminal import console, show_end, show_recipe, show_refusal
from trl_ablate.run import directory
from trl_ablate.run.termination import Termination, end_with_launcher


def add_options(parser: Parser) -> None:
    parser.add_profile()
    parser.add_argument(
        "--dry_run", action="store_true", help="print the resolved settings instead of training"
    )
    existing = parser.add_argument_group("a run in output_dir").add_mutually_exclusive_group()
    existing.add_argument("--resume", action="store_true", help="continue it")
    existing.add_argument("--overwrite", action="store_true", help="replace it")


def run(options: argparse.Namespace, words: list[str]) -> int:
    termination = Termination().listen()
    end_with_launcher()
    recipe = options.parser.take_recipe(words, "std_dev_off")
    put_off()
    if options.dry_run:
        spare_models()
    with to_keep():
        from trl_ablate.cli.several import refuse_several
        from trl_ablate.recipe.resolving import load_recipe

    refuse_several(recipe, words)
    resolved = load_recipe(recipe, profile=options.profile, overrides=words)
    is_main = resolved.config.process_index == 0
    if is_main:
        show_recipe(resolved, everything=options.dry_run)
    if options.dry_run:
        show_refusal(resolved)
        return DONE
    with to_keep():
        from trl_ablate.training import lifecycle

    mode = "resume" if options.resume else "overwrite" if options.overwrite else "new"
    start = lifecycle.Start(resolved, mode, console, termination, command=sys.argv)
    outcome = lifecycle.run(start)
    if outcome.reason == directory.PREEMPTED:
        sys.stderr.write("ended by SIGTERM at a checkpoint; --resume continues from it\n")
        return PREEMPTED
    if is_main:
        show_end(start.directory)
    if is_main and resolved.config.push_to_hub:
        for line in lifecycle.publish(start):
            console.print(line)
    return DONE


main = Command(
    add_options,
    run,
    stopped="what was finished is kept",
    settings="RECIPE [options] [--key value ...]",
    resumable=True,
)
