"""`trl-ablate COMMAND …`: finds the command, imports its file, calls its `main`. No torch."""

import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper

from trl_ablate.cli.parsing import OF_TRAINING, exit_codes
from trl_ablate.errors import ConfigurationError, brief, nearest

COMMANDS = {
    "train": "train one arm: a recipe, on this machine",
    "evaluate": "evaluate a saved model",
    "study": "compare arms over several seeds: plan, run, status, fetch, restore, report, clean",
    "judge": "verdicts on runs that anybody trained, from their logs or tables",
    "findings": "the answers of all studies as pages, from their reports",
    "leverage": "which world separates which setting: a table from the runs of a study",
    "mechanism": "draw the styles of answers over a training: why a setting acts in a world",
    "xray": "compare the gradients of arms on the same rollouts, before any run",
    "publish": "publish a finished run on the Hugging Face Hub",
    "bench": "measure this package against stock TRL",
    "plan": "estimate on paper what fits on a machine and how long a step takes",
    "doctor": "print what a recipe lacks on this machine, and how to fix it",
    "new": "write a folder with a task or a world of your own, ready to train in miniature",
    "check": "try out a recipe's data, prompt and reward before training",
    "inspect": "run the guard's rules over the log of any GRPO run, and draw its curves",
    "recipes": "list the shipped recipes and studies, or print a recipe",
}


USAGE = """\
usage: trl-ablate COMMAND …

The ablation lab for GRPO on top of TRL.

commands:
{commands}

examples:
  trl-ablate train quickstart
  trl-ablate train std_dev_off --profile rtx4090 --seed 1
  trl-ablate study plan chains
  accelerate launch -m trl_ablate train std_dev_off

`trl-ablate COMMAND --help` shows the options of a command.

{exit_codes}
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code.

    Args:
        argv: the words after the program's name; None: those of this process's command line.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # stderr never fails
    command, *words = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if command in COMMANDS:
        return import_module(f"trl_ablate.cli.{command}").main(words)
    from trl_ablate.cli.ending import exit_code_of

    return exit_code_of(lambda: print_about(command), stopped="nothing was written")


def print_about(word: str) -> None:
    """Print the help or the version; refuse any other word."""
    if word in ("--help", "-h"):
        sys.stdout.write(usage())
    elif word == "--version":
        from trl_ablate.run.identity import version_of

        found = version_of("trl-ablate") or "(not installed: a copy on the Python path)"
        sys.stdout.write(f"trl-ablate {found}\n")
    else:
        meant = nearest(word, COMMANDS) or f"; use one of {', '.join(COMMANDS)}"
        raise ConfigurationError(f"'{brief(word)}' is not a command{meant}")


def usage() -> str:
    lines = [f"  {name:<{max(map(len, COMMANDS))}}   {text}" for name, text in COMMANDS.items()]
    return USAGE.format(commands="\n".join(lines), exit_codes=exit_codes(OF_TRAINING))
