"""`study plan --xray`: the X-ray of a study before any run, and the runs that it saves."""

import pytest
import yaml

from tests.support.xray_cases import small_xray
from trl_ablate.cli.main import main


@pytest.mark.slow
def test_a_plan_names_the_runs_that_can_be_saved(tiny_model, tmp_path, capsys):
    settings = small_xray(tiny_model)
    study = {
        "question": "q",
        "arms": {
            "grpo": "grpo.yaml",
            "no_clip": {"recipe": "grpo.yaml", "overrides": {"surrogate": "no_clip"}},
            "std_dev_off": "std_dev_off.yaml",
        },
        "seeds": [0, 1, 2],
        "profile": settings.pop("profile"),
        "overrides": settings,
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    runs = tmp_path / "runs"
    assert main(["study", "plan", str(tmp_path / "study.yaml"), "--runs", str(runs), "--xray"]) == 0
    shown = capsys.readouterr().out
    assert "no_clip: inert" in shown
    assert "no_clip: its 3 runs repeat those of grpo; leave it out" in shown
    assert "3 of 9 runs to do can be saved" in shown
    assert (runs / "xray" / tmp_path.name / "xray.json").exists()
