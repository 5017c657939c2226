"""The positions that are counted are those of the formulas."""

import json

import pytest

from trl_ablate.bench.positions import fewest
from trl_ablate.cli.bench import PRESETS, asked, main

SMALL = ["--rows", "8", "--group", "4", "--prompt_length", "10", "--cap", "12", "--rounds", "1"]


def measured(tmp_path, *words: str) -> tuple[dict[str, dict], dict]:
    output = tmp_path / "bench.json"
    assert main([*words, *SMALL, "--mean_length", "6", "--output", str(output)]) == 0
    found = json.loads(output.read_text("utf-8"))
    return {row["what"]: row for row in found["rows"]}, found["facts"]


def test_a_prompt_counts_once_and_a_backward_pass_twice_more():
    assert fewest([10], [5, 3], [False, False]) == 10 + 4 + 2
    assert fewest([10], [5, 3], [True, False]) == 3 * 10 + 3 * 4 + 2
    assert fewest([10, 20], [5, 3], [True, False]) == 3 * 10 + 3 * 4 + 20 + 2
    learns = [False, False, True, False]
    assert fewest([10, 20], [5, 3, 4, 2], learns) == 10 + 4 + 2 + 3 * 20 + 3 * 3 + 1


def test_positions_of_training(tmp_path):
    """Stock TRL computes every row at full width, forward and backward."""
    words = ("--idle", "0.5", "--microbatch", "4", "--steps", "1", "--sigma", "0.1")
    rows, facts = measured(tmp_path, "train", *words)
    longest, tokens = (round(rows["stock TRL"]["positions"] / (3 * 8)) - 10), 6 * 8
    assert rows["stock TRL"]["positions"] == 3 * 8 * (10 + longest) and 6 <= longest <= 12
    ours = rows["trl_ablate"]["positions"]
    assert 2 * (10 + 4 * 5) * 2 <= ours < rows["stock TRL"]["positions"] * 0.75
    limit = facts["positions of stock TRL, in multiples of the fewest"]
    assert limit == pytest.approx(
        rows["stock TRL"]["positions"] / (4 * 10 + 2 * (tokens - 8)), rel=0.1
    )


def test_positions_of_rollouts(tmp_path):
    """transformers reads every prompt of a row, and goes on until the last row has ended."""
    rows, facts = measured(tmp_path, "rollout", "--uniform")
    assert rows["transformers"]["positions"] == 8 * (10 + 5)
    own_check = 8  # the first token, by the model and by the short pass
    assert rows["trl_ablate"]["positions"] == 2 * 10 + 8 * 5 + own_check
    limit = facts["positions of transformers, in multiples of the fewest"]
    assert limit == 120 / 60
    assert facts["completions with different tokens"] == 0


@pytest.mark.parametrize("mode", ["train", "rollout", "step"])
def test_a_preset_gives_defaults(mode):
    words = ([mode], [mode, "--preset", "short_answers", "--cap", "50"])
    plain, preset = (asked(*main.parse(each)) for each in words)
    assert preset.cap == 50 and preset.rows == PRESETS["short_answers"]["rows"] != plain.rows
    assert preset.rounds == plain.rounds
