"""`trl-ablate train` and `evaluate` as a user runs them: what they print, refuse and write; every
script describes itself."""

import os
import re
import signal
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY
from tests.support.warm import Ended, warm
from trl_ablate.cli import train
from trl_ablate.estimates import standard_errors, summary
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.json_files import read_jsonl, read_object

SCRIPTS = sorted((REPOSITORY / "scripts").glob("*.py"))
QUICK = (
    "--grpo_steps", "2", "--eval_size", "16", "--train_size", "256", "--report_to", "none",
    "--generation_batch_size", "16", "--optimizer_batch_size", "16",
    "--per_device_train_batch_size", "16", "--grader_workers", "1",
)  # fmt: skip


def interpreter(*words: object) -> Ended:
    """A command in an interpreter of its own."""
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return Ended(0, done.stdout, done.stderr)


@pytest.fixture
def dry_run(capsys, monkeypatch, tmp_path):
    """`dry_run(*words)`: what `trl-ablate train --dry_run` prints, in this process."""
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(train, "spare_models", lambda: None)  # it would spare other tests PEFT
    output = tmp_path / "run"

    def dry_run(*words: str) -> str:
        assert train.main([*words, "--dry_run", "--output_dir", str(output)]) == 0
        assert not output.exists()
        return capsys.readouterr().out

    return dry_run


def test_a_dry_run_shows_what_resolves_and_starts_nothing(dry_run):
    printed = dry_run("recipes/std_dev_off.yaml")
    printed = "\n".join(" ".join(line.split()) for line in printed.splitlines())
    for said in ("profile 'miniature'", "scale_rewards group -> none", "inert knobs\nepsilon ",
                 "\nscale_rewards recipe std_dev_off.yaml none", "\nseed base grpo.yaml 0",
                 "\ndataset profile miniature mini", "\nstop derived",
                 "\noutput_dir command line /"):  # fmt: skip
        assert said in printed, said


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (["--profile", "h100"], "profile 'h100' is for a GPU, and this machine has none"),
        (["--use_liger_kernel", "true"], "liger-kernel is not installed"),
        (["--use_peft", "true"], None),
    ],
)
def test_a_dry_run_names_what_would_be_refused_here(dry_run, words, refused):
    printed = dry_run("grpo", *words)
    assert ("would be refused here: " in printed) is (refused is not None)
    assert (refused or "") in printed


@pytest.mark.slow
def test_a_dry_run_imports_nothing_heavy_even_for_an_adapter():
    words = ("-X", "importtime", "scripts/train.py", "recipes/qlora.yaml", "--dry_run")
    imported = {line.split("|")[-1].strip() for line in interpreter(*words).stderr.splitlines()}
    assert "trl.trainer.base_config" in imported
    assert not imported & {"peft", "bitsandbytes", "datasets", "trackio", "vllm", "math_verify"}
    assert not imported & {"trl.trainer.grpo_trainer", "transformers.modeling_utils"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[RunDirectory, str]:
    """Two GRPO steps, evaluated three times, by the script itself; and what it printed."""
    run = RunDirectory(tmp_path_factory.mktemp("trained") / "run")
    done = interpreter(
        "scripts/train.py", "recipes/question_only.yaml", "--profile", "miniature", *QUICK,
        "--eval_steps", "1", "--seed", "3", "--output_dir", run.path,
    )  # fmt: skip
    return run, done.stdout


def test_a_run_writes_what_it_was_and_how_it_went(trained):
    run, printed = trained
    record, rows = run.read(), list(run.metrics())
    assert (record["status"], record["arm"], record["seed"]) == ("finished", "question_only", 3)
    assert record["git"]["commit"]
    assert {"trl", "torch", "transformers"} <= set(record["versions"])
    assert re.fullmatch("[0-9a-f]{12}", record["start_weights"])
    assert read_object(run.config_file)["changes"] == {"template": ["r1_zero", "question_only"]}
    assert [row["grpo_step"] for row in rows if "eval_reward" in row] == [0, 1, 2]
    (first, _) = (row for row in rows if "grad_norm" in row)
    shown = {"reward", "format_reward", "answer_reward", "mean_ratio", "clip_fraction", "entropy"}
    assert shown <= first.keys()
    assert "eval reward, last" in printed


def evaluated(*words: object) -> str:
    """What `trl-ablate evaluate` prints."""
    ended = warm("evaluate", *words).wait()
    assert ended.code == 0, ended.printed
    return ended.stdout


@pytest.mark.slow
def test_a_run_is_evaluated_to_its_own_last_number(trained, tmp_path):
    """The training's last evaluation, and the one of what it saved, are the same."""
    run, output = trained[0], tmp_path / "found.json"
    last = [row for row in run.metrics() if "eval_reward" in row][-1]
    evaluated(run.checkpoint_last, "--output", output)
    (main,) = read_object(output)["sets"].values()
    for name in ("reward", "format_reward", "answer_reward", "mean_length", "truncated"):
        assert main["metrics"][name] == pytest.approx(last[f"eval_{name}"], abs=1e-9), name
    assert main["metrics"]["mean_length"] > 0
    assert run.read()["status"] == "finished"


def test_the_numbers_of_an_evaluation_are_those_of_the_completions(tiny_model, tmp_path):
    output = tmp_path / "found.json"
    printed = evaluated(
        tiny_model, "--profile", "miniature", "--samples", 3, "--temperature", 0.5,
        "--eval_size", 6, "--max_completion_length", 8, "--output", output, "--completions",
        "--per_question", tmp_path / "rates.jsonl",
    )  # fmt: skip
    found = read_object(output)
    (main,) = found["sets"].values()
    rows = list(read_jsonl(tmp_path / "found.completions.jsonl"))
    assert len(rows) == 18 and main["questions"] == 6
    assert [rows[i]["prompt"] for i in (0, 1, 2)] == [rows[0]["prompt"]] * 3
    assert {key: main["metrics"][key] for key in summary(rows, 3)} == summary(rows, 3)
    assert main["standard_errors"] == standard_errors(rows, 3)
    rates = list(read_jsonl(tmp_path / "rates.jsonl"))
    assert all(one["question"] in row["prompt"] for one, row in zip(rates, rows[::3], strict=True))
    assert {one["graded"] for one in rates} == {3}
    assert (found["samples"], found["temperature"], found["top_p"]) == (3, 0.5, 1.0)
    assert found["git"]["commit"] and found["resolved"]["task"]["dataset"] == "miniature/chains"
    assert "pass@2" in printed and "±" in printed


@pytest.mark.slow
def test_ctrl_c_says_so_and_leaves_no_process(tmp_path):
    run = RunDirectory(tmp_path / "run")
    words = ("recipes/quickstart.yaml", *QUICK, "--grpo_steps", "1000", "--output_dir", run.path)
    training = warm("train", *words, with_graders=True)
    training.wait_for(run.metrics_file.exists)
    os.killpg(training.pid, signal.SIGINT)
    ended = training.wait()
    assert ended.code == 130, ended.printed
    assert "stopped" in ended.printed and "Traceback" not in ended.printed
    assert run.read()["status"] == "stopped"
    with pytest.raises(ProcessLookupError):
        os.killpg(training.pid, 0)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_help(script):
    done = interpreter(script, "--help")
    assert done.stdout.startswith(f"usage: trl-ablate {script.stem} ")
    assert done.stderr == ""
