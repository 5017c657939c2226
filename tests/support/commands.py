"""Commands in interpreters of their own, as a user starts them."""

from collections.abc import Mapping

QUIET = ("TRANSFORMERS_VERBOSITY",)
"""Variables of the tests with which libraries print less than in a user's shell."""


def loud(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without them."""
    return {name: value for name, value in environment.items() if name not in QUIET}
