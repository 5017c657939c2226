"""`scripts/train.py` as a user runs it: what it prints, what it refuses, what it writes; and that
every script describes itself."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY
from tests.support.warm import Ended, warm
from trl_ablate.cli import train

SCRIPTS = sorted((REPOSITORY / "scripts").glob("*.py"))
QUICK = [
    "--grpo_steps", "2", "--eval_size", "16", "--train_size", "256", "--report_to", "none",
    "--generation_batch_size", "16", "--optimizer_batch_size", "16",
    "--per_device_train_batch_size", "16", "--grader_workers", "1",
]  # fmt: skip


@pytest.fixture
def run(capsys, monkeypatch):
    """`run(*words)`: how `trl-ablate train` ends in this process."""
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(train, "spare_models", lambda: None)  # it would hold for the tests after

    def run(*words: object) -> Ended:
        return Ended(train.main([str(word) for word in words]), *capsys.readouterr())

    return run


def test_dry_run_shows_what_resolves_and_starts_nothing(run, tmp_path):
    output = tmp_path / "run"
    done = run("recipes/std_dev_off.yaml", "--dry_run", "--output_dir", output)
    assert done.code == 0, done.stderr
    printed = "\n".join(" ".join(line.split()) for line in done.stdout.splitlines())
    for said in ("profile 'miniature'", "scale_rewards group -> none", "inert knobs\nepsilon ",
                 "\nscale_rewards recipe std_dev_off.yaml none", "\nseed base grpo.yaml 0",
                 "\ndataset profile miniature mini", "\nstop derived",
                 "\noutput_dir command line /"):  # fmt: skip
        assert said in printed, said
    assert not output.exists()


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (["--profile", "h100"], "profile 'h100' is for a GPU, and this machine has none"),
        (["--use_liger_kernel", "true"], "liger-kernel is not installed"),
        (["--use_peft", "true"], None),
    ],
)
def test_a_dry_run_names_what_would_be_refused_here(run, tmp_path, words, refused):
    done = run("grpo", "--dry_run", *words, "--output_dir", tmp_path / "run")
    assert done.code == 0, done.stderr
    assert ("would be refused here: " in done.stdout) is (refused is not None)
    assert (refused or "") in done.stdout


@pytest.mark.slow
def test_a_dry_run_imports_nothing_heavy_even_for_an_adapter(tmp_path):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "scripts/train.py", "recipes/qlora.yaml", "--dry_run"],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert "trl.trainer.base_config" in imported
    assert not imported & {"peft", "bitsandbytes", "datasets", "trackio", "vllm", "math_verify"}
    assert not imported & {"trl.trainer.grpo_trainer", "transformers.modeling_utils"}


def test_a_run_writes_what_it_was_and_how_it_went(tmp_path):
    """Two GRPO steps on the miniature, evaluated three times; by the script itself, in an
    interpreter of its own."""
    output = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "scripts/train.py", "recipes/std_dev_off.yaml", *QUICK,
         "--profile", "miniature", "--eval_steps", "1", "--seed", "3", "--output_dir", str(output)],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((output / "run.json").read_text())
    assert (record["status"], record["arm"], record["seed"]) == ("finished", "std_dev_off", 3)
    assert record["git"]["commit"]
    assert {"trl", "torch", "transformers"} <= set(record["versions"])
    assert re.fullmatch("[0-9a-f]{12}", record["start_weights"])
    resolved = json.loads((output / "resolved_config.json").read_text())
    assert resolved["changes"] == {"scale_rewards": ["group", "none"]}
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    evaluations = [row for row in rows if "eval_reward" in row]
    assert [row["grpo_step"] for row in evaluations] == [0, 1, 2]
    steps = [row for row in rows if "grad_norm" in row]
    shown = {"reward", "format_reward", "answer_reward", "mean_ratio", "clip_fraction", "entropy"}
    assert shown <= steps[0].keys()
    assert "eval reward, last" in done.stdout


@pytest.mark.slow
def test_ctrl_c_says_so_and_leaves_no_process(tmp_path):
    output = tmp_path / "run"
    words = ["recipes/quickstart.yaml", *QUICK, "--grpo_steps", "1000", "--output_dir", output]
    training = warm("train", *words, with_graders=True)
    training.wait_for((output / "metrics.jsonl").exists)
    os.killpg(training.pid, signal.SIGINT)
    ended = training.wait()
    assert ended.code == 130, ended.printed
    assert "stopped" in ended.printed and "Traceback" not in ended.printed
    assert json.loads((output / "run.json").read_text())["status"] == "stopped"
    with pytest.raises(ProcessLookupError):
        os.killpg(training.pid, 0)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_help(script, tmp_path):
    """In an interpreter of its own, from any folder."""
    done = subprocess.run(
        [sys.executable, str(script), "--help"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: trl-ablate {script.stem} ")
    assert done.stderr == ""
