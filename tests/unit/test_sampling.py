"""Which cases of a test with many parameters belong to the default run, and which to no other."""

import pytest

from tests.support.sampling import mark_the_others


class Case:
    """What is used of a pytest item."""

    def __init__(self, nodeid: str, *marks: pytest.MarkDecorator):
        self.nodeid, self.marks = nodeid, {mark.name: mark.mark for mark in marks}

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.marks.get(name)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks[mark.name] = mark.mark

    @property
    def kind(self) -> str:
        return "long" if "long" in self.marks else "slow" if "slow" in self.marks else "default"


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("wanted", "marks", "expected"),
    [
        (2, [], ["default", "slow", "long", "long", "long", "slow", "default"]),
        (1, [], ["default", "slow", *["long"] * 5]),
        (2, [SLOW], ["slow", *["long"] * 5, "slow"]),
        (9, [], ["default"] * 7),
    ],
)
def test_of_the_others_as_many_are_slow_and_the_rest_is_long(wanted, marks, expected):
    """Of each kind the first, the last and those between them."""
    cases = [Case(f"test_it[{place}]", pytest.mark.sample(wanted), *marks) for place in range(7)]
    mark_the_others(cases)  # pyright: ignore[reportArgumentType]
    assert [case.kind for case in cases] == expected
    assert all("slow" in case.marks for case in cases if case.kind == "long")
