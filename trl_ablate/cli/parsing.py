"""How the arguments and the help of every command look. No torch.

A wrong argument is a `ConfigurationError` with one sentence, as every other refusal is; argparse
prints its usage and ends the process instead.
"""

import argparse
from collections.abc import Iterable
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


class Parser(argparse.ArgumentParser):
    """Options are written in full, and errors are sentences.

    Args:
        examples: commands that the help shows.
        exit_codes: what the help says about them; None: nothing.
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

    def options(self) -> list[str]:
        """`--x` for every option that it knows."""
        return [name for action in self._actions for name in action.option_strings]

    def refuse(self, words: list[str]) -> None:
        """Refuse the words that nothing takes."""
        from trl_ablate.recipe.strict import brief, nearest

        if words:
            name = words[0].partition("=")[0]
            what = "option" if name.startswith("-") else "argument"
            self.error(f"unknown {what} '{brief(name)}'{nearest(name, self.options())}")
