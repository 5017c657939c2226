"""Which cases of a test with many parameters belong to the default run, and which to no other."""

import pytest

from tests.support.sampling import mark_the_others, spread


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


def kinds(*marks: pytest.MarkDecorator, count: int = 7) -> list[str]:
    cases = [Case(f"test_it[{number}]", *marks) for number in range(count)]
    mark_the_others(cases)  # pyright: ignore[reportArgumentType]
    assert all("slow" in case.marks for case in cases if case.kind == "long")
    return [case.kind for case in cases]


def test_of_the_others_as_many_are_slow_and_the_rest_is_long():
    found = kinds(pytest.mark.sample(2))
    assert found == ["default", "slow", "long", "long", "long", "slow", "default"]
    found = kinds(pytest.mark.sample(2), pytest.mark.slow)
    assert found == ["slow", *["long"] * 5, "slow"]


@pytest.mark.parametrize(
    ("count", "wanted", "kept"),
    [(10, 3, {0, 4, 9}), (10, 1, {0}), (3, 3, {0, 1, 2}), (2, 5, {0, 1}), (5, 2, {0, 4})],
)
def test_cases_are_spread(count, wanted, kept):
    assert spread(count, wanted) == kept
