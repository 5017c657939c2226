"""Distances in X-rays against those in outcomes, from files that are written down."""

import json

import numpy as np
import pytest
from scipy import stats

from trl_ablate.cli.main import main
from trl_ablate.errors import ConfigurationError
from trl_ablate.study.report.xray_outcomes import Pair, correlation, markdown, pairs_of

COSINES = {"grpo": 1.0, "same": 0.99, "turned": 0.7, "across": 0.1, "against": -0.3, "not_run": 0.5}
FINALS = {"grpo": (0.8, 0.9), "same": (0.84, 0.88), "turned": (0.9, 0.94), "across": (0.7, 0.72),
          "against": (0.1, 0.2)}  # fmt: skip


@pytest.fixture
def files(tmp_path):
    arms = {name: [{"cosine_mean": value, "verdict": "x"}] for name, value in COSINES.items()}
    (tmp_path / "xray.json").write_text(json.dumps({"reference": "grpo", "arms": arms}))
    lines = ["arm,final_eval_reward,collapsed_at"]
    for arm, values in FINALS.items():
        lines += [f"{arm},{value},{'20.0' if arm == 'against' else ''}" for value in values]
    (tmp_path / "runs.csv").write_text("\n".join([*lines, "same,,"]))  # one has not ended
    return tmp_path / "xray.json", tmp_path / "runs.csv"


def test_pairs_and_their_rank_correlation(files):
    pairs = {pair.arm: pair for pair in pairs_of(*files)}
    assert set(pairs) == {"same", "turned", "across", "against"}
    assert pairs["across"].distance == pytest.approx(0.9)
    assert pairs["across"].difference == pytest.approx(-0.14)
    assert pairs["across"].outcome == pytest.approx(0.14)
    assert (pairs["against"].collapsed, pairs["same"].runs) == (2, 2)
    # outcomes 0.01, 0.07, 0.14, 0.70 in the order of the distances
    found = correlation(list(pairs.values()))
    assert found.value == pytest.approx(1)
    assert found.low <= found.value == found.high
    assert correlation(list(pairs.values())[:3]) is None


def test_an_outcome_is_against_the_arm_that_the_gradient_is_compared_with(files):
    found = json.loads(files[0].read_text())
    files[0].write_text(json.dumps(found | {"against": {"across": "turned"}}))
    pairs = {pair.arm: pair for pair in pairs_of(*files)}
    assert pairs["across"].difference == pytest.approx(0.71 - 0.92)
    assert pairs["turned"].difference == pytest.approx(0.92 - 0.85)


def test_the_command(files, tmp_path, capsys):
    word = f"{files[0]}={files[1]}"
    assert main(["xray", "--outcomes", word, "--output", str(tmp_path / "out")]) == 0
    assert "Rank correlation of distance and outcome over 4 arms: +1.00" in capsys.readouterr().out
    assert (tmp_path / "out" / "OUTCOMES.md").read_text() == markdown(pairs_of(*files))
    assert (tmp_path / "out" / "outcomes.png").read_bytes().startswith(b"\x89PNG")


def test_outcomes_without_the_reference_are_refused(files):
    files[1].write_text("arm,final_eval_reward,collapsed_at\nsame,0.8,\n")
    with pytest.raises(ConfigurationError, match="has no finished run of 'grpo'"):
        pairs_of(*files)


def test_the_correlation_and_its_bootstrap_are_those_of_scipy():
    rng = np.random.default_rng(1)
    distances, differences = rng.random(12), rng.normal(size=12).round(1)  # with ties
    pairs = [Pair("s", str(n), "x", *both, 0, 1, True)
             for n, both in enumerate(zip(distances, differences, strict=True))]  # fmt: skip
    draw = np.random.default_rng(0)
    draws = [draw.integers(0, 12, 12) for _ in range(2000)]
    values = [stats.spearmanr(distances[d], abs(differences[d])).statistic for d in draws]
    assert correlation(pairs).value == pytest.approx(
        stats.spearmanr(distances, abs(differences)).statistic
    )
    assert [correlation(pairs).low, correlation(pairs).high] == pytest.approx(
        list(np.quantile(values, [0.025, 0.975]))
    )


def test_the_bootstrap_draws_whole_studies():
    """Two studies of three arms: with both, the correlation is 0.886; with one twice, 0.5 or 1."""
    places = [("a", 1, 1), ("a", 2, 3), ("a", 3, 2), ("b", 4, 4), ("b", 5, 5), ("b", 6, 6)]
    pairs = [Pair(study, str(x), "x", float(x), y / 10, 0, 1, True) for study, x, y in places]
    found = correlation(pairs)
    assert (found.low, found.high) == pytest.approx((0.5, 1.0))
    assert found.value == pytest.approx(1 - 6 * 2 / (6 * 35))
