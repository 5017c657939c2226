"""`trl-ablate doctor`: whether a recipe can run here, and its exit code."""

import subprocess
import sys

import pytest
from transformers import integrations

from trl_ablate.cli.doctor import main
from trl_ablate.training import machine


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["quickstart"], 0, "can run here"),
        ([], 0, "grpo.yaml on profile 'miniature'"),
        (["grpo", "--profile", "h100"], 1, "missing: GPU"),
        (["grpo", "--profile", "none"], 1, "missing: GPU"),
        (["grpo", "--profile", "miniature", "--beta", "0.1"], 0, "can run here"),
        (["quickstart", "--report_to", "wandb"], 1, "missing: wandb; fix: run pip install wandb"),
        (["quickstart", "--use_liger_kernel", "true"], 1, "missing: liger-kernel; fix: run pip"),
        (["quickstart", "--dataset", "reasoning_gym/gcd"], 1, "run pip install 'trl-ablate[gym]'"),
        (["quickstart", "--use_peft", "true"], 0, "can run here"),
    ],
)
def test_it_says_whether_a_recipe_can_run_here(tmp_path, capsys, monkeypatch, words, code, said):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(machine, "is_here", lambda package: package == "peft")
    monkeypatch.setattr(integrations, "get_available_reporting_integrations", lambda: ["trackio"])
    assert main([*words, "--output_dir", str(tmp_path / "run")]) == code
    printed = capsys.readouterr()
    assert said in printed.out and printed.err == ""
    for looked_at in ("torch", "Python", "GPU", "GiB free", "Hub token"):
        assert looked_at in printed.out
    assert not (tmp_path / "run").exists()


def test_a_torch_that_cannot_be_imported_is_named():
    code = (
        "import sys\nsys.modules['torch'] = None\n"
        "from trl_ablate.training import machine\n"
        "machine.installed = lambda: {}\n"
        "machine.declared = lambda: ['torch>=2.11']\n"
        "from trl_ablate.cli.doctor import main\nsys.exit(main([]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "")
    assert "missing: torch" in done.stdout
