"""`recipes/accelerate`: accelerate reads them, and they set nothing that a recipe sets."""

import pytest
from accelerate.commands.config.config_args import load_config_from_file

from trl_ablate.recipe.places import SHIPPED

KINDS = {"ddp": "MULTI_GPU", "fsdp2": "FSDP", "zero2": "DEEPSPEED", "zero3": "DEEPSPEED"}
"""One for every way to share the work."""


@pytest.mark.parametrize("name", KINDS)
def test_accelerate_reads_it(name):
    """Accelerate raises for unknown keys."""
    config = load_config_from_file(str(SHIPPED / "accelerate" / f"{name}.yaml"))
    assert config.distributed_type == KINDS[name] and config.mixed_precision == "no"
    if name.startswith("zero"):
        # TRL's trainer accumulates gradients as the recipe sets it
        expected = {"zero_stage": int(name[-1]), "gradient_accumulation_steps": "auto"}
        assert expected.items() <= config.deepspeed_config.items()
    if name == "fsdp2":
        assert config.fsdp_config["fsdp_version"] == 2
