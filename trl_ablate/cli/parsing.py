"""The form of every command: its help, its options, how it ends. No torch.

The docstring of a command's file is its help: what it does, and examples.

    def add_options(parser): parser.add_argument("name", …)
    def run(options): …
    main = Command(add_options, run)

A wrong argument raises a `ConfigurationError` with one sentence, like every other refusal; argparse
alone would print its usage and end the process.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from trl_ablate.errors import ConfigurationError, brief, nearest


def exit_codes(
    done: str = "done",
    failed: str = "failed",
    refused: str = "the command, a recipe or a file",
    *,
    training: bool = False,
) -> str:
    """The help's text on exit codes."""
    known = {0: done, 1: failed, 2: f"refused: something in {refused} has to change"}
    if training:
        known[75] = "ended by SIGTERM (train only): start it again with --resume"
    lines = [f"  {code:<6}{text}" for code, text in known.items()]
    return "\n".join(["exit codes:", *lines, "  130   stopped by Ctrl-C"])


EXIT_CODES, EXIT_CODES_OF_TRAINING = exit_codes(), exit_codes(training=True)


def at_least_one(text: str) -> int:
    """A count on a command line."""
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number of at least 1")
    return count


class Parser(argparse.ArgumentParser):
    """A parser that accepts no abbreviated options and raises one-sentence errors.

    Args:
        examples: commands that the help shows.
        exit_codes: the help's text on exit codes; None: no text.
    """

    def __init__(
        self, examples: Iterable[str] = (), exit_codes: str | None = EXIT_CODES, **arguments: Any
    ):
        shown = "\n  ".join(["examples:", *examples]) if examples else None
        arguments.setdefault("epilog", "\n\n".join(filter(None, (shown, exit_codes))))
        super().__init__(
            allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **arguments
        )

    def error(self, message: str) -> NoReturn:
        see = " See" if message.endswith("?") else "; see"
        raise ConfigurationError(f"{message}{see} `{self.prog} --help`")

    def add_profile(self) -> None:
        """The option of the commands that resolve a recipe for a machine."""
        self.add_argument(
            "--profile", default="auto", help="h100, rtx4090, miniature, auto (default), or a path"
        )

    def take_recipe(self, words: list[str], example: str) -> str:
        """Take the recipe, which comes first, from the words of a command."""
        if not words or words[0].startswith("-"):
            self.error(f"missing RECIPE, which comes first, such as {example}")
        return words.pop(0)

    def options(self) -> list[str]:
        """The names of all options, such as `--x`."""
        return [name for action in self._actions for name in action.option_strings]

    def refuse(self, words: list[str]) -> None:
        """Refuse words that are neither an option nor an argument."""
        if words:
            name = words[0].partition("=")[0]
            what = "option" if name.startswith("-") else "argument"
            self.error(f"unknown {what} '{brief(name)}'{nearest(name, self.options())}")


@dataclass(frozen=True)
class Command:
    """A command, which has the name and the docstring of the file of `run`; called with its words,
    it returns its exit code.

    Args:
        options: adds the options to a parser.
        run: does the work with the parsed options; if the command takes settings, also with the
            words that are none of its options.
        stopped: what Ctrl-C leaves.
        settings: the usage, such as `RECIPE [options] [--key value ...]`, of a command that takes
            settings.
        resumable: whether it has `--resume`.
        codes: what its exit codes 0, 1 and 2 mean.
    """

    options: Callable[[Parser], object]
    run: Callable[..., int]
    stopped: str = "nothing was written"
    settings: str | None = None
    resumable: bool = False
    codes: Sequence[str] = ()

    def __call__(self, argv: Sequence[str] | None = None) -> int:
        from trl_ablate.cli.ending import exit_code_of  # imports rich, which `--help` spares

        return exit_code_of(
            lambda: self.run(*self.parse(argv)), stopped=self.stopped, resumable=self.resumable
        )

    def parse(self, argv: Sequence[str] | None) -> tuple[Any, ...]:
        """What `run` is called with."""
        module = sys.modules[self.run.__module__]
        prog = f"trl-ablate {module.__name__.rpartition('.')[2]}"
        usage = self.settings and f"{prog} {self.settings}"
        text, _, examples = (module.__doc__ or "").strip().partition("\n\nexamples:\n  ")
        codes = exit_codes(*self.codes, training=self.resumable)
        parser = Parser(examples.split("\n  "), codes, prog=prog, usage=usage, description=text)
        parser.set_defaults(parser=parser)
        self.options(parser)
        options, words = parser.parse_known_args(argv)
        if self.settings:
            return options, words
        options.parser.refuse(words)
        return (options,)


def leading(words: list[str]) -> list[str]:
    """Take the words before the first option from the list."""
    count = next((n for n, word in enumerate(words) if word.startswith("-")), len(words))
    found = words[:count]
    del words[:count]
    return found
