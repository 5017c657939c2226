"""Which cases of a test with many parameters belong to the default run."""

import pytest

from tests.support.sampling import spread


@pytest.mark.parametrize(
    ("count", "wanted", "kept"),
    [(10, 3, {0, 4, 9}), (10, 1, {0}), (3, 3, {0, 1, 2}), (2, 5, {0, 1}), (5, 2, {0, 4})],
)
def test_cases_are_spread(count, wanted, kept):
    assert spread(count, wanted) == kept
