"""A made-up plan with tuning: arms × values, with trials and fresh seeds, without any training."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.support.synthetic_study import make_plan
from trl_ablate.study.planned import Plan
from trl_ablate.study.tuning import make_tuning


def tuned_plan(
    tops: Mapping[str, Sequence[float]],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    halving: bool = False,
    against: Mapping[str, str] | None = None,
    fails: Mapping[str, int] | None = None,
    **settings: Any,
) -> Plan:
    """Arm -> the reward that each value of `lr` (1, 2, ...) reaches; negative: it collapses from
    there. `settings` go to every fake training, `fails` to those of a candidate."""
    longest = max(map(len, tops.values()))
    tuning = make_tuning(
        {"lr": list(range(1, longest + 1))}, seeds=2, by="final", halving=halving,
        arms=list(tops), used=set(seeds), what="study",
    )  # fmt: skip
    arms = {
        name: {
            "top": abs(top),
            **({"collapse": 8} if top < 0 else {}),
            **({"fails": fails[name]} if fails and name in fails else {}),
            **settings,
        }
        for arm, names in tuning.arms.items()
        for name, top in zip(names, tops[arm], strict=True)
    }
    plan = make_plan(arms, (*tuning.seeds, *seeds))
    return replace(plan, tuning=tuning, against=against or {})
