"""Errors with one-sentence messages: wrong settings or files, broken rewards, failed uploads.

And what these sentences are made of: short texts, and the name that was meant.
"""

from collections.abc import Iterable


class ConfigurationError(ValueError):
    """One sentence: the wrong value, what is allowed, and what to change."""


REFUSED = 2
"""The exit code of a command that ends with a `ConfigurationError`."""


def shortened(text: str, limit: int) -> str:
    """The text on one line, and not longer than `limit`."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def brief(what: object, limit: int = 80) -> str:
    """A text for a message: one line, only visible characters, and not longer than `limit`."""
    line = " ".join(str(what).split())
    shown = (letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line)
    return shortened("".join(shown), limit)


def nearest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """`; did you mean 'x'?` for the closest known name, and what else to do."""
    from difflib import get_close_matches  # seldom needed

    close = get_close_matches(str(name), list(known), n=1)
    if not close:
        return otherwise and f"; {otherwise}"
    return f"; did you mean '{close[0]}'?" + (otherwise and f" Otherwise {otherwise}")


class RewardError(RuntimeError):
    """A reward function raised an error; the message names the function and the line."""


class PublishError(ConfigurationError):
    """Publishing failed; one sentence gives the cause. The run itself is not changed."""
