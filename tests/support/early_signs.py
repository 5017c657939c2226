"""Does a run's entropy, or its reward, at steps 20 to 30 foretell its end, beside its arm?

`python -m tests.support.early_signs chains_on_policy` prints Spearman's correlation over the seeds
of each arm whose runs mostly succeed, and the mean over the arms (Fisher's z, with 95 % intervals),
from the runs that are kept beside the study. The partial one is that of entropy at equal reward.
"""

import sys
from collections.abc import Sequence

import numpy as np
from scipy import stats

from trl_ablate.recipe.places import SHIPPED
from trl_ablate.study.definition import load_study
from trl_ablate.study.factors import SEPARATOR
from trl_ablate.study.kept_runs import beside, kept
from trl_ablate.study.resolution import resolve_plan

EARLY, FEWEST, LOW = (1 / 3, 1 / 2), 8, 0.5


def main(study: str) -> None:
    file = SHIPPED / "studies" / study / "study.yaml"
    plan, runs = resolve_plan(load_study(file)), kept(beside(file))
    found = []
    for arm in plan.arms:
        finals = [runs[run.id] for run in arm.runs[plan.trials :] if run.id in runs]
        signs = np.array([signs_of(run.rows, plan.primary_metric) for run in finals])
        if len(signs) >= FEWEST and signs[:, 2].mean() > LOW:
            found.append((len(signs), *correlations(signs)))
            shown = "  ".join(f"{r:+.2f}" for r in found[-1][1:])
            name = arm.name.partition(SEPARATOR)[0]
            sys.stdout.write(f"{name:24} {len(signs):3} runs  {shown}\n")
    weights = np.array([n - 3 for n, *_ in found])
    for name, column in (("entropy", 1), ("reward", 2), ("entropy at equal reward", 3)):
        mean = np.average(np.arctanh([row[column] for row in found]), weights=weights)
        error = 1.96 * 1.03 / np.sqrt(weights.sum())  # 1.03: of ranks
        low, high = np.tanh([mean - error, mean + error])
        sys.stdout.write(f"{name}: {np.tanh(mean):+.2f} [{low:+.2f}, {high:+.2f}]\n")


def signs_of(rows: Sequence[dict], metric: str) -> tuple[float, float, float]:
    """Entropy and reward between a third and half of the training, and the end's evaluations."""
    last = max(row["step"] for row in rows)
    early = [row for row in rows if EARLY[0] * last <= row["step"] <= EARLY[1] * last]
    end = [row[metric] for row in rows if metric in row and row["step"] >= 0.7 * last]
    entropy, reward = (
        np.mean([row[name] for row in early if name in row]) for name in ("entropy", "reward")
    )
    return float(entropy), float(reward), float(np.mean(end))


def correlations(signs: np.ndarray) -> tuple[float, float, float]:
    ranks = stats.rankdata(signs, axis=0)
    matrix = np.corrcoef(ranks, rowvar=False)
    entropy, reward, both = matrix[0, 2], matrix[1, 2], matrix[0, 1]
    partial = (entropy - reward * both) / np.sqrt((1 - reward**2) * (1 - both**2))
    return entropy, reward, partial


if __name__ == "__main__":
    main(sys.argv[1])
