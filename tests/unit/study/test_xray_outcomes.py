"""What an X-ray says beside what the runs said: in the report of a study, and over all arms."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from tests.support.synthetic_study import METRIC, flat_run
from trl_ablate.cli.main import main
from trl_ablate.errors import ConfigurationError
from trl_ablate.study.report.analysis import analyse
from trl_ablate.study.report.xray_outcomes import Pair, correlation, pairs_of, xray_section
from trl_ablate.study.store import RunStore
from trl_ablate.study.xray_file import xray_folder

COSINES = {"grpo": 1.0, "same": 0.99, "turned": 0.7, "across": 0.1, "against": -0.3, "not_run": 0.5}
FINALS = {"grpo": (0.8, 0.9), "same": (0.84, 0.88), "turned": (0.9, 0.94), "across": (0.7, 0.72),
          "against": (0.1, 0.2)}  # fmt: skip


@pytest.fixture
def files(tmp_path):
    arms = {name: [{"cosine_mean": value, "verdict": "x"}] for name, value in COSINES.items()}
    (tmp_path / "xray.json").write_text(json.dumps({"reference": "grpo", "arms": arms}))
    lines = ["arm,status,final_eval_reward,collapsed_at"]
    for arm, values in FINALS.items():
        end = "20.0" if arm == "against" else ""
        lines += [f"{arm},finished,{value},{end}" for value in values]
    (tmp_path / "runs.csv").write_text("\n".join([*lines, "same,running,,", "same,failed,0.1,"]))
    return tmp_path / "xray.json", tmp_path / "runs.csv"


def test_pairs_and_their_rank_correlation(files):
    pairs = {pair.arm: pair for pair in pairs_of(*files)}
    assert set(pairs) == {"same", "turned", "across", "against"}
    assert pairs["across"].distance == pytest.approx(0.9)
    assert pairs["across"].difference == pytest.approx(-0.14)
    assert (pairs["against"].collapsed, pairs["same"].runs) == (2, 2)
    # outcomes 0.01, 0.07, 0.14, 0.70 in the order of the distances
    found = correlation(list(pairs.values()))
    assert found.mean == pytest.approx(1) == pytest.approx(found.high) and found.low <= found.mean
    assert correlation(list(pairs.values())[:3]) is None
    assert correlation([replace(pair, distance=0.0) for pair in pairs.values()]).mean is None


def test_an_outcome_is_against_the_arm_that_the_gradient_is_compared_with(files):
    found = json.loads(files[0].read_text())
    files[0].write_text(json.dumps(found | {"against": {"across": "turned"}}))
    pairs = {pair.arm: pair for pair in pairs_of(*files)}
    assert pairs["across"].difference == pytest.approx(0.71 - 0.92)
    assert pairs["turned"].difference == pytest.approx(0.92 - 0.85)
    files[1].write_text("arm,final_eval_reward,collapsed_at\nsame,0.8,\n")
    with pytest.raises(ConfigurationError, match="has no finished run of 'grpo'"):
        pairs_of(*files)


@pytest.mark.slow
def test_the_command(files, tmp_path, capsys):
    word = f"{files[0]}={files[1]}"
    assert main(["xray", "--outcomes", word, "--output", str(tmp_path / "out")]) == 0
    assert "Rank correlation of distance and outcome over 4 arms: +1.00" in capsys.readouterr().out
    page = (tmp_path / "out" / "OUTCOMES.md").read_text()
    assert "| against | x | 1.3000 | -0.700 | 2 | 2 |" in page
    assert (tmp_path / "out" / "outcomes.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_correlation_and_its_bootstrap_are_those_of_scipy():
    rng = np.random.default_rng(1)
    distances, differences = rng.random(12), rng.normal(size=12).round(1)  # with ties
    pairs = [Pair("s", str(n), "x", *both, 0, 1, True)
             for n, both in enumerate(zip(distances, differences, strict=True))]  # fmt: skip
    draw = np.random.default_rng(0)
    draws = [draw.integers(0, 12, 12) for _ in range(2000)]
    values = [stats.spearmanr(distances[d], abs(differences[d])).statistic for d in draws]
    whole, found = stats.spearmanr(distances, abs(differences)).statistic, correlation(pairs)
    low, high = np.quantile(values, [0.025, 0.975])
    assert (found.mean, found.low, found.high) == pytest.approx((whole, low, high))


@pytest.mark.parametrize(
    ("of_runs", "of_xray", "label", "said"),
    [
        ({}, {}, "no_baseline", "worse: 0.210 against 0.810"),
        ({"no_baseline": "std_dev_off"}, {}, "no_baseline", "0.210 against 0.810 (not tested)"),
        ({"no_baseline": "std_dev_off"}, {"no_baseline": "std_dev_off"},
         "no_baseline (against std_dev_off)", "worse: 0.210 against 0.860"),
    ],
)  # fmt: skip
def test_the_section_sets_the_xray_beside_the_runs(tmp_path, of_runs, of_xray, label, said):
    """A verdict of the runs is on the same two arms; another difference is not tested."""
    ends = {"grpo": 0.8, "std_dev_off": 0.85, "no_baseline": 0.2}
    runs = [flat_run(arm, seed, [0.1, end + 0.01 * ((seed + n) % 3)])
            for n, (arm, end) in enumerate(ends.items()) for seed in range(3)]  # fmt: skip
    analysis, store = analyse(runs, METRIC, "final", of_runs), RunStore(tmp_path)
    assert not xray_section(store, "made_up", analysis).blocks
    point = {"checkpoint": "base", "norm_ratio": 0.5}
    against = {"verdict": "other direction, against", "cosine_mean": -0.27, "drift": 8}
    arms = {
        "grpo": [point | {"verdict": "reference", "cosine_mean": 1.0}],
        "std_dev_off": [point | {"verdict": "only rescales", "cosine_mean": 0.997}],
        "no_baseline": [point | against],
        "of another study": [point | against],
    }
    skipped = {"group_size_16": "generates differently: num_generations is 16, not 8"}
    file = xray_folder(store, "made_up") / "xray.json"
    file.parent.mkdir(parents=True)
    found = {"reference": "grpo", "against": of_xray, "arms": arms, "skipped": skipped}
    file.write_text(json.dumps(found))
    outside = "out of reach: it generates differently: num_generations is 16, not 8"
    assert xray_section(store, "made_up", analysis).blocks[0].rows == [
        ["std_dev_off", "base", "only rescales", "0.997", "0.500", "better: 0.860 against 0.810"],
        [label, "base + 8 steps", "other direction, against", "−0.270", "0.500", said],
        ["group_size_16", "", outside, "", "", ""],
    ]
