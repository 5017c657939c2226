"""Logged rows without the values that depend on the clock or the machine."""

import re
from collections.abc import Mapping
from typing import Any

OF_THE_MACHINE = re.compile(
    r"(^|_)(time|memory|profiling)/|runtime$|_time$|per_second$|^seconds$|^grader/restarts$"
)


def without_times(row: Mapping[str, Any]) -> dict[str, Any]:
    """The rest is the same in every run of the same training."""
    return {name: value for name, value in row.items() if not OF_THE_MACHINE.search(name)}
