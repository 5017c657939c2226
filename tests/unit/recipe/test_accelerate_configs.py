"""`recipes/accelerate`: accelerate reads them, and they set nothing that a recipe sets."""

import pytest
from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file

from tests.conftest import REPOSITORY

KINDS = {"ddp": "MULTI_GPU", "fsdp2": "FSDP", "zero2": "DEEPSPEED", "zero3": "DEEPSPEED"}
FILES = sorted((REPOSITORY / "recipes" / "accelerate").glob("*.yaml"))


def test_there_is_one_for_every_way_to_share_the_work():
    assert {file.stem for file in FILES} == KINDS.keys()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_accelerate_reads_it(file):
    """Accelerate raises for unknown keys."""
    config = load_config_from_file(str(file))
    assert isinstance(config, ClusterConfig)
    assert config.distributed_type == KINDS[file.stem]
    assert config.mixed_precision == "no"
    if file.stem.startswith("zero"):
        assert config.deepspeed_config["zero_stage"] == int(file.stem[-1])
        # TRL's trainer accumulates gradients as the recipe sets it
        assert config.deepspeed_config["gradient_accumulation_steps"] == "auto"
    if file.stem == "fsdp2":
        assert config.fsdp_config["fsdp_version"] == 2
