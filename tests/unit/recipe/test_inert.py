"""Settings that are reported as inert, for which no gradient is needed to show it."""

import pytest
from trl import ModelConfig

from trl_ablate import AblationConfig, TaskArguments
from trl_ablate.recipe.inert import inert_knobs


def inert(**settings) -> dict[str, str]:
    batches = {"per_device_train_batch_size": 4, "num_generations": 4}
    config = AblationConfig(output_dir="unused", use_cpu=True, bf16=False, **batches, **settings)
    return inert_knobs(config, TaskArguments(), ModelConfig(), settings)


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize(
    ("rollout", "accumulated", "silent"),
    [
        (4, 4, False),
        (2, 4, False),
        (4, 2, False),
        (4, 1, True),  # an optimizer step is one microbatch
        (1, 4, True),  # a rollout batch is one microbatch
        (6, 4, True),  # an optimizer step would sum part of a group
    ],
)
def test_regrouping_is_inert_where_there_is_nothing_to_regroup(rollout, accumulated, silent, on):
    found = inert(
        steps_per_generation=rollout,
        gradient_accumulation_steps=accumulated,
        regroup_by_length=on,
    )
    assert ("regroup_by_length" in found) is silent
    if silent:
        assert "nothing to regroup" in found["regroup_by_length"]


def test_regrouping_is_inert_where_a_row_depends_on_its_neighbours():
    found = inert(gradient_accumulation_steps=4, regroup_by_length=True, length_norm="microbatch")
    assert "depends on its microbatch" in found["regroup_by_length"]
