"""The grid of a study's runs."""

import shutil
from io import StringIO

from rich.console import Console

from tests.support.synthetic_study import write_study
from trl_ablate.study.progress import grid
from trl_ablate.study.runs import StudyRuns


def shown(tmp_path, seeds: int) -> list[list[str]]:
    """The words of each line, of a study of which the last run is missing."""
    plan, store = write_study(tmp_path, {"a": {"top": 0.8}, "b": {"top": 0.4}}, range(seeds))
    shutil.rmtree(store.path / plan.arms[1].runs[-1].id)
    file = StringIO()
    Console(file=file, width=80).print(grid(StudyRuns(plan, store)))
    return [line.split() for line in file.getvalue().splitlines()]


def test_every_run_has_its_state_and_its_last_value(tmp_path):
    _, header, first, second, *_ = shown(tmp_path, 3)
    assert header == ["arm", "seed", "0", "seed", "1", "seed", "2"]
    assert first[0] == "a" and first[1::2] == ["✓"] * 3
    assert all(0.6 < float(value) < 1 for value in first[2::2])
    assert second[-1] == "·"


def test_many_seeds_have_their_states_and_the_mean_of_their_last_values(tmp_path):
    _, header, first, second, *_ = shown(tmp_path, 12)
    assert header == ["arm", "seeds", "0", "to", "11", "mean"]
    assert first[:2] == ["a", "✓" * 12] and 0.7 < float(first[2]) < 0.9
    assert second[:2] == ["b", "✓" * 11 + "·"] and 0.3 < float(second[2]) < 0.5
