"""Train one arm: `trl-ablate train RECIPE [--key value ...]`.

Any setting can be given on the command line and wins over the recipe.
"""

import argparse
import logging
import sys
from collections.abc import Sequence

from trl_ablate.cli.terminal import console, show_end, show_recipe
from trl_ablate.errors import ConfigurationError
from trl_ablate.run.directory import PREEMPTED
from trl_ablate.run.failures import in_words
from trl_ablate.run.termination import Terminated, Termination, end_with_launcher

EXIT_PREEMPTED = 75
"""A shell's EX_TEMPFAIL: not done, try again."""


def main(argv: Sequence[str] | None = None) -> int:
    termination = Termination().listen()
    end_with_launcher()
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # an unused kernel
    options, overrides = parse(argv)
    try:
        return run(options, overrides, termination)
    except ConfigurationError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except Terminated:
        sys.stderr.write("ended by SIGTERM; --resume continues from the last checkpoint\n")
        return EXIT_PREEMPTED
    except KeyboardInterrupt:
        sys.stderr.write("stopped; what was finished is kept\n")
        return 130
    except Exception as error:
        known = in_words(error)
        if known is None:
            raise
        sys.stderr.write(f"error: {known}\n")
        return 1


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """The options, and the words that set something else."""
    parser = argparse.ArgumentParser(
        description="Train one arm: RECIPE is a YAML file, or the name of a shipped recipe.",
        usage="%(prog)s RECIPE [options] [--key value ...]",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--profile", default="auto", help="h100, rtx4090, miniature, auto, or a path"
    )
    parser.add_argument("--dry_run", action="store_true", help="print the resolved settings")
    parser.add_argument("--doctor", action="store_true", help="what is missing here, how to fix it")
    existing = parser.add_mutually_exclusive_group()
    existing.add_argument("--overwrite", action="store_true", help="replace the run in output_dir")
    existing.add_argument("--resume", action="store_true", help="continue the run in output_dir")
    options, words = parser.parse_known_args(argv)
    first = words[0] if words else "-"
    options.recipe = None if first.startswith("-") else words.pop(0)
    if options.recipe is None and not options.doctor:
        parser.error("missing RECIPE, which comes first, such as recipes/std_dev_off.yaml")
    return options, words


def run(options: argparse.Namespace, overrides: list[str], termination: Termination) -> int:
    if options.doctor:
        from trl_ablate.cli.doctor import diagnose

        return diagnose(options.recipe, options.profile, overrides)
    if options.dry_run:
        spare_imports()
    from trl_ablate.recipe.resolving import load_recipe

    resolved = load_recipe(options.recipe, profile=options.profile, overrides=overrides)
    is_main = resolved.config.process_index == 0
    if is_main:
        show_recipe(resolved, everything=options.dry_run)
    if options.dry_run:
        return 0
    from trl_ablate.training import lifecycle

    mode = "resume" if options.resume else "overwrite" if options.overwrite else "new"
    start = lifecycle.Start(resolved, mode, console, termination, command=sys.argv)
    outcome = lifecycle.run(start)
    if outcome.reason == PREEMPTED:
        sys.stderr.write("ended by SIGTERM at a checkpoint; --resume continues from it\n")
        return EXIT_PREEMPTED
    if is_main:
        show_end(start.directory)
    if is_main and resolved.config.push_to_hub:
        for line in lifecycle.publish(start):
            console.print(line)
    return 0


def spare_imports() -> None:
    """Leave out what loads models and adapters: a dry run does neither, and more than half of its
    time would go into importing it. transformers does so to ask whether it runs in Kubeflow."""
    from transformers import integrations

    sys.modules["peft"] = None  # pyright: ignore[reportArgumentType]
    integrations.is_kubeflow_available = lambda: False
