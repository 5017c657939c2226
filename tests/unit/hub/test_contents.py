"""What of a run is published: whole models, as they were saved."""

import pytest

from trl_ablate import ConfigurationError
from trl_ablate.hub.contents import read_run
from trl_ablate.run.checkpoints import seal
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.files import write_json


def test_a_model_that_does_not_agree_with_its_seal_is_not_published(tmp_path):
    run = RunDirectory(tmp_path)
    write_json(run.run_file, {"status": "finished"})
    write_json(run.config_file, {})
    run.checkpoint_last.mkdir()
    weights = run.checkpoint_last / "model.safetensors"
    weights.write_bytes(b"weights")
    seal(run.checkpoint_last)
    assert read_run(run).checkpoints["checkpoint_last"] == {weights.name: weights}
    weights.write_bytes(b"weighty")
    with pytest.raises(ConfigurationError, match="checkpoint_last is no longer as it was saved"):
        read_run(run)
