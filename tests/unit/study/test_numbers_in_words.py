"""Numbers that FINDINGS.md has in its sentences alone come out of the kept runs, by SciPy."""

import json
from collections import defaultdict

import numpy as np
import pytest
from scipy import integrate, stats

from trl_ablate.recipe.places import SHIPPED
from trl_ablate.study.kept_runs import kept

STUDIES = SHIPPED / "studies"
GRPO = "grpo--learning_rate_3e-05"
TWO_STEPS = "off_policy_e1_tb64--learning_rate_1.5e-05"
OFF_POLICY = "chains_two_steps"
TRIALS = 10_000
"""The first seed of trials."""


def curves(study: str) -> dict[str, list[np.ndarray]]:
    """Arm -> steps and evaluations of its runs, without trials."""
    found = defaultdict(list)
    for run in kept(STUDIES / study / "runs.parquet").values():
        record = json.loads(run.record)
        if record["seed"] < TRIALS:
            points = [(r["step"], r["eval_reward"]) for r in run.rows if "eval_reward" in r]
            found[record["arm"]].append(np.array(points).T)
    return found


def last_third(curve: np.ndarray) -> float:
    steps, values = curve[:, curve[0] > 40]
    return integrate.trapezoid(values, steps) / (steps[-1] - steps[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("written", "study", "arm", "against", "end"),
    [
        ("+0.092 [+0.072, +0.112]", "chains_on_policy", "reuse--learning_rate_3e-05", GRPO, False),
        ("+0.035 [+0.019, +0.051]", OFF_POLICY, "dapo--learning_rate_3e-05", TWO_STEPS, 1),
        ("−0.017 [−0.033, −0.002]", OFF_POLICY, "sapo--learning_rate_1.5e-05", TWO_STEPS, 1),
        ("−0.026 [−0.051, −0.001]", OFF_POLICY, "gspo--learning_rate_3e-05", TWO_STEPS, 1),
    ],
)  # fmt: skip
def test_a_number_comes_out_of_the_runs(written, study, arm, against, end):
    """Of the runs that succeed."""
    runs = curves(study)
    levels = [last_third(curve) for curve in runs[against]]
    base = np.mean([curve[1][0] for curve in runs[against]])
    half = (base + np.median(levels)) / 2
    ours, theirs = (
        [curve[1][-1] if end else last_third(curve) for curve in runs[name]
         if last_third(curve) >= half] for name in (arm, against)
    )  # fmt: skip
    limits = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval()
    numbers = [np.mean(ours) - np.mean(theirs), *limits]
    found = "{} [{}, {}]".format(*(f"{each:+.3f}".replace("-", "−") for each in numbers))
    assert found == written
    assert written in (STUDIES / "FINDINGS.md").read_text(encoding="utf-8")
