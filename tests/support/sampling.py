"""`@pytest.mark.sample(n)`: of a test with many parameters, `n` belong to the default run.

They are spread evenly over those that are not slow by their own mark, in the order of the
parameters. Of the others, as many are slow tests, and the rest is long: only `.ci/run --long` does
it. Of a slow test, `n` are not long.
"""

from collections.abc import Sequence

import pytest


def mark_the_others(items: Sequence[pytest.Item]) -> None:
    families: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sample"):
            families.setdefault(item.nodeid.partition("[")[0], []).append(item)
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.slow)
    for family in families.values():
        marker = family[0].get_closest_marker("sample")
        assert marker is not None
        (count,) = marker.args
        quick = [item for item in family if not item.get_closest_marker("slow")]
        chosen = [quick[number] for number in spread(len(quick), count)]
        slow = [item for item in family if item not in chosen]
        for item in slow:
            item.add_marker(pytest.mark.slow)
        for item in without(slow, spread(len(slow), count)):
            item.add_marker(pytest.mark.long)


def without(items: Sequence[pytest.Item], numbers: set[int]) -> list[pytest.Item]:
    return [item for number, item in enumerate(items) if number not in numbers]


def spread(count: int, wanted: int) -> set[int]:
    """`wanted` of the numbers below `count`, the first and the last among them."""
    if wanted >= count:
        return set(range(count))
    return {round(step * (count - 1) / max(1, wanted - 1)) for step in range(wanted)}
