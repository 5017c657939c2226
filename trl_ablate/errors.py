"""Errors with one-sentence messages: wrong settings or files, broken rewards, failed uploads."""


class ConfigurationError(ValueError):
    """One sentence: the wrong value, what is allowed, and what to change."""


REFUSED = 2
"""The exit code of a command that ends with a `ConfigurationError`."""

REWARD_RAISED = (
    "reward function '{name}' raised {error} (line {line} of {file}); fix it, then rerun with "
    "--resume"
)


def shortened(text: str, limit: int) -> str:
    """The text on one line, and not longer than `limit`."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


class RewardError(RuntimeError):
    """A reward function raised an error; the message names the function and the line."""


class PublishError(ConfigurationError):
    """Publishing failed; one sentence gives the cause. The run itself is not changed."""
