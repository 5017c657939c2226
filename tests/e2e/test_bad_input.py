"""The code of a model is not run by accident."""

import json
import shutil

from trl_ablate.cli import check


def test_code_of_a_model_needs_trust_remote_code(tmp_path, capsys, tiny_model):
    """A reward model whose repository brings its own code is refused, and the code is not run."""
    judge = shutil.copytree(tiny_model, tmp_path / "judge")
    config = json.loads((judge / "config.json").read_text())
    config |= {"auto_map": {"AutoModelForSequenceClassification": "e.Evil"}, "model_type": "e"}
    (judge / "config.json").write_text(json.dumps(config))
    (judge / "e.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    words = ["--reward_funcs", json.dumps([str(judge)])]
    assert check.main(["quickstart", *words]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "reward model" in said and not (tmp_path / "ran").exists()
