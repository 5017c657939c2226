"""`deterministic`: two runs end in the same bits; another order of microbatches only rounds."""

import os

import pytest
import torch

from tests.contract.test_head import PLAIN_SGD, VARIED, weights_of
from trl_ablate import AblationConfig, ConfigurationError


@pytest.fixture(autouse=True)
def as_before():
    """Deterministic algorithms are chosen for the whole process."""
    environment = dict(os.environ)
    yield
    torch.use_deterministic_algorithms(False)
    os.environ.clear()
    os.environ.update(environment)


def test_two_runs_end_in_the_same_bits(make_trainer):
    ends = []
    for regrouped in (True, True, False):
        trainer = make_trainer(
            **VARIED, **PLAIN_SGD, deterministic=True, regroup_by_length=regrouped
        )
        start = weights_of(trainer)
        trainer.train()
        assert torch.are_deterministic_algorithms_enabled()
        ends.append(weights_of(trainer))
    one, same, as_drawn = ends
    assert torch.equal(one, same)
    moved = (one - start).abs().max()
    assert moved > 3e-5
    assert (one - as_drawn).abs().max() < 5e-6 * moved


def test_it_needs_no_second_setting(tmp_path):
    assert AblationConfig(
        output_dir=str(tmp_path), use_cpu=True, deterministic=True
    ).full_determinism


def test_a_server_is_out_of_reach(tmp_path):
    with pytest.raises(ConfigurationError, match="VLLM_BATCH_INVARIANT=1"):
        AblationConfig(
            output_dir=str(tmp_path),
            use_cpu=True,
            deterministic=True,
            use_vllm=True,
            vllm_mode="server",
        )
