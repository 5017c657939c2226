"""The parser of every command: its arguments and its help. No torch.

A wrong argument raises a `ConfigurationError` with one sentence, like every other refusal; argparse
alone would print its usage and end the process.
"""

import argparse
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from trl_ablate.errors import ConfigurationError

_DONE = """\
exit codes:
  0     done
  1     failed
  2     refused: something in the command, a recipe or a file has to change"""
_STOPPED = "  130   stopped by Ctrl-C"
_TRY_AGAIN = "  75    ended by SIGTERM (train only): start it again with --resume"

EXIT_CODES = f"{_DONE}\n{_STOPPED}"
EXIT_CODES_OF_TRAINING = f"{_DONE}\n{_TRY_AGAIN}\n{_STOPPED}"


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
        raise ConfigurationError(f"{message}; see `{self.prog} --help`")

    def add_profile(self) -> None:
        """The option of the commands that resolve a recipe for a machine."""
        self.add_argument(
            "--profile", default="auto", help="h100, rtx4090, miniature, auto (default), or a path"
        )

    def parse_recipe(self, argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
        """The options, with the first word as `recipe` if it is one, and the words of settings."""
        options, words = self.parse_known_args(argv)
        named = bool(words) and not words[0].startswith("-")
        options.recipe = words.pop(0) if named else None
        return options, words

    def options(self) -> list[str]:
        """The names of all options, such as `--x`."""
        return [name for action in self._actions for name in action.option_strings]

    def refuse(self, words: list[str]) -> None:
        """Refuse words that are neither an option nor an argument."""
        from trl_ablate.recipe.strict import brief, nearest

        if words:
            name = words[0].partition("=")[0]
            what = "option" if name.startswith("-") else "argument"
            self.error(f"unknown {what} '{brief(name)}'{nearest(name, self.options())}")
