"""The form of every command: its help, its options, how it ends. No torch.

The docstring of a command's file is its help: what it does, and examples.

    @command(option("name", …), flag("--public", …), stopped="nothing was written")
    def main(options): …

A wrong argument raises a `ConfigurationError` with one sentence, like every other refusal; argparse
alone would print its usage and end the process.
"""

import argparse
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

from trl_ablate.errors import ConfigurationError, brief, nearest

EXIT_CODES = {
    0: "done",
    1: "failed",
    2: "refused: something in the command, a recipe or a file has to change",
    130: "stopped by Ctrl-C",
}
OF_TRAINING = {75: "ended by SIGTERM (train only): start it again with --resume"}


def exit_codes(own: Mapping[int, str]) -> str:
    lines = [f"  {code:<6}{text}" for code, text in sorted({**EXIT_CODES, **own}.items())]
    return "\n".join(["exit codes:", *lines])


def at_least(least: int, kind: type[int] | type[float] = int) -> Callable[[str], float]:
    def read(text: str) -> float:
        with suppress(ValueError):
            if kind(text) >= least:
                return kind(text)
        number = "whole number" if kind is int else "number"
        raise argparse.ArgumentTypeError(f"'{text}' is no {number} of at least {least}")

    return read


def a_number(text: str) -> float:
    with suppress(ValueError):
        if math.isfinite(float(text)):
            return float(text)
    raise argparse.ArgumentTypeError(f"'{text}' is no number")


Option = Callable[[Any], object]
"""Adds options to a parser or to a group of its options."""
Work = Callable[..., int | None]
"""What a command does with its options; its exit code, or None when it is done."""


def option(*names: str, **how: Any) -> Option:
    """An option or an argument, as argparse's `add_argument` takes it."""
    return lambda parser: parser.add_argument(*names, **how)


def flag(name: str, text: str) -> Option:
    return option(name, action="store_true", help=text)


def group(title: str, *options: Option, exclusive: bool = False) -> Option:
    """Options under a title of the help; `exclusive`: of which one can be given."""

    def add(parser: argparse.ArgumentParser) -> None:
        made = parser.add_argument_group(title)
        place = made.add_mutually_exclusive_group() if exclusive else made
        for each in options:
            each(place)

    return add


PROFILE = option(
    "--profile", default="auto",
    help="h100, rtx4090, smollm2, smollm2-gpu, miniature, miniature-sums, a path; default: auto",
)  # fmt: skip
"""Of the commands that resolve a recipe for a machine."""
RUNS = option(
    "--runs", metavar="FOLDER", type=Path, default=Path("runs"),
    help="folder of all runs; default: runs",
)  # fmt: skip


def check_writable(name: str, file: Path | None) -> None:
    """Refuse a file, the value of an option, that cannot be written, before anything is done."""
    if file and not file.parent.is_dir():
        raise ConfigurationError(
            f"the folder of {name} {file} does not exist; create it, or give another"
        )
    if file and file.is_dir():
        raise ConfigurationError(f"{name} {file} is a folder; give a file in it")
    replaced = file and (file.is_file() or not file.exists())  # by a new file, which is renamed
    if file and not os.access(file.parent if replaced else file, os.W_OK):
        raise ConfigurationError(
            f"there is no permission to write {name} {file}; give a file in another folder"
        )


def check_picture(name: str, file: Path) -> None:
    check_writable(name, file)
    if file.suffix.lower() not in ("", ".png"):
        raise ConfigurationError(f"{name} {file} is a PNG; call it {file.with_suffix('.png')}")


class Parser(argparse.ArgumentParser):
    """A parser that accepts no abbreviated options and raises one-sentence errors.

    Args:
        text: what the command does, and examples, as the docstring of its file has them.
        codes: what its exit codes mean, where not what they mean elsewhere.
    """

    def __init__(
        self, text: str | None = None, codes: Mapping[int, str] | None = None, **arguments: Any
    ):
        what, examples, shown = (text or "").strip().partition("examples:\n")
        arguments = {"description": what.rstrip() or None} | arguments
        super().__init__(
            allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
            epilog=f"{examples}{shown}\n\n{exit_codes(codes or {})}".lstrip(), **arguments,
        )  # fmt: skip
        self._negative_number_matcher = re.compile(r"-(\d+\.?|\d*\.\d+)(e[+-]?\d+)?$", re.I)

    def print_help(self, file: Any = None) -> None:
        """Written at once, with its errors, which argparse would ignore or leave to the exit."""
        (file or sys.stdout).write(self.format_help())
        sys.stdout.flush()

    def error(self, message: str) -> NoReturn:
        see = " See" if message.endswith("?") else "; see"
        raise ConfigurationError(f"{message}{see} `{self.prog} --help`")

    def take_recipe(self, words: list[str], example: str) -> str:
        """Take the recipe, which comes first, from the words of a command."""
        if not words or words[0].startswith("-"):
            self.error(f"missing RECIPE, which comes first, such as {example}")
        return words.pop(0)

    def refuse(self, words: list[str]) -> None:
        """Refuse words that are neither an option nor an argument."""
        if words:
            name = words[0].partition("=")[0]
            what = "option" if name.startswith("-") else "argument"
            known = [option for action in self._actions for option in action.option_strings]
            self.error(f"unknown {what} '{brief(name)}'{nearest(name, known)}")


@dataclass(frozen=True)
class Command:
    """A command, which has the name and the docstring of the file of `run`; called with its words,
    it returns its exit code.

    Args:
        run: does the work with the parsed options; if the command takes settings, also with the
            words that are none of its options.
        stopped: what Ctrl-C leaves.
        settings: the usage, such as `RECIPE [options] [--key value ...]`, of a command that takes
            settings.
        resumable: whether it has `--resume`.
        codes: what its exit codes mean, where not what they mean elsewhere.
    """

    run: Work
    options: Sequence[Option]
    stopped: str = "nothing was written"
    settings: str | None = None
    resumable: bool = False
    codes: Mapping[int, str] = field(default_factory=dict)

    def __call__(self, argv: Sequence[str] | None = None) -> int:
        from trl_ablate.cli.ending import exit_code_of  # imports rich, which `--help` spares

        return exit_code_of(
            lambda: self.run(*self.parse(argv)), stopped=self.stopped, resumable=self.resumable
        )

    def parse(self, argv: Sequence[str] | None) -> tuple[Any, ...]:
        module = sys.modules[self.run.__module__]
        prog = f"trl-ablate {module.__name__.rpartition('.')[2]}"
        usage = self.settings and f"{prog} {self.settings}"
        parser = Parser(module.__doc__, self.codes, prog=prog, usage=usage)
        given = sys.argv[1:] if argv is None else [*argv]
        parser.set_defaults(parser=parser, words=given)
        for add in self.options:
            add(parser)
        options, words = parser.parse_known_args(given)
        if self.settings:
            return options, words
        options.parser.refuse(words)
        return (options,)


def command(*options: Option, **how: Any) -> Callable[[Work], Command]:
    return lambda run: Command(run, options, **how)


def leading(words: list[str]) -> list[str]:
    """Take the words before the first option from the list."""
    found = list(takewhile(lambda word: not word.startswith("-"), words))
    del words[: len(found)]
    return found
