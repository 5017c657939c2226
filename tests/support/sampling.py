"""`@pytest.mark.sample(n)`: of a test with many parameters, `n` belong to the default run.

They are spread evenly over all, in the order of the parameters; the others are slow tests.
"""

from collections.abc import Sequence

import pytest


def mark_the_others_slow(items: Sequence[pytest.Item]) -> None:
    families: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sample") and not item.get_closest_marker("slow"):
            families.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for family in families.values():
        marker = family[0].get_closest_marker("sample")
        assert marker is not None
        kept = spread(len(family), *marker.args)
        for number, item in enumerate(family):
            if number not in kept:
                item.add_marker(pytest.mark.slow)


def spread(count: int, wanted: int) -> set[int]:
    """`wanted` of the numbers below `count`, the first and the last among them."""
    if wanted >= count:
        return set(range(count))
    return {round(step * (count - 1) / max(1, wanted - 1)) for step in range(wanted)}
