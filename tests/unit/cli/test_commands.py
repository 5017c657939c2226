"""`trl-ablate`: its commands and their help, what a wrong word ends in, and `doctor`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import integrations

from tests.conftest import REPOSITORY
from trl_ablate.cli import doctor
from trl_ablate.cli.main import COMMANDS, main
from trl_ablate.cli.train import refuse_several
from trl_ablate.study.definition import load_study
from trl_ablate.training import machine

STOCK = REPOSITORY / "tests" / "data" / "stock_grpo" / "healthy"


def python(code: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=60,
        env={**os.environ, **environment},
    )  # fmt: skip


def test_the_help_names_every_command_and_exit_code_and_commands_have_examples(capsys):
    assert main(["--help"]) == main([]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {code} " in shown for code in (0, 1, 2, 75, 130))
    for name, text in COMMANDS.items():
        assert f"  {name} " in shown and text in shown
        with pytest.raises(SystemExit) as end:
            main([name, "--help"])
        of_it = capsys.readouterr().out
        assert end.value.code == 0 and of_it.startswith(f"usage: trl-ablate {name} ")
        examples, codes, _ = of_it.partition("examples:\n  ")[2].partition("exit codes:\n  0 ")
        assert f"trl-ablate {name} " in examples and codes
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("trl-ablate ")


def test_neither_help_nor_reading_loads_torch_and_a_terminal_without_utf8_gets_replacements():
    done = python(
        "import sys\n"
        "from contextlib import suppress\n"
        "from trl_ablate.cli.main import COMMANDS, main\n"
        "main(['--help'])\n"
        "for name in COMMANDS:\n"
        "    with suppress(SystemExit):\n"
        "        main([name, '--help'])\n"
        "main(['recipes'])\n"
        "main(['plan', '--json'])\n"
        f"main(['inspect', {str(STOCK)!r}, '--picture', '/dev/null', '--overwrite'])\n"
        "heavy = {'torch', 'transformers', 'trl', 'huggingface_hub', 'ray', 'modal'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n",
        PYTHONIOENCODING="latin-1:surrogateescape",
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"usage: trl-ablate COMMAND ?" in done.stdout and b"no rule fired" in done.stdout


TABLE = [
    ("tarin", "'tarin' is not a command; did you mean 'train'?"),
    ("xyz", f"'xyz' is not a command; use one of {', '.join(COMMANDS)}"),
    ("bench trian", "argument MODE: invalid choice: 'trian'"),
    ("bench train --vocabulary 50", "--vocabulary is 50; give at least the "),
    ("bench train --lengths {here}/zero.json --rows 2 --group 2 --microbatch 2", "the length 0"),
    ("bench train --model_name_or_path {here}", "could not be loaded"),
    ("bench train --idle 2", "--idle is 2; give 0 to 1"),
    ("bench rollout --prompt_length 1", "--prompt_length is 1; give at least 2"),
    ("bench step --world words", "'words' has questions and no model of its own"),
    ("bench step --model_name_or_path {here}", "could not be loaded"),
    ("bench step --rows 100", "--rows 100 is no multiple of --microbatch 64; change one of them"),
    ("bench scale --rows 64 8 --processes 1 3", "--rows 64 is no multiple of --microbatch times"),
    ("bench gpu --device cpu --toy --output gpu.md", "--output gpu.md is the name of the page"),
    ("bench gpu", "no GPU here; run this on a machine with one, or give --device cpu --toy"),
    ("doctor dapo h100", "unknown argument 'h100'"),
    ("evaluate nobody/no-such-model", "checkpoint nobody/no-such-model could not be loaded"),
    ("evaluate miniature --completions", "--completions writes a file next to --output; add"),
    ("evaluate miniature --output {here}", "--output {here} is a folder; give a file in it"),
    ("evaluate miniature --output {here}/folder.json --completions",
     "--completions {here}/folder.completions.jsonl is a folder"),
    ("evaluate miniature --output {here}/a.json --completions --per_question "
     "{here}/a.completions.jsonl", "which another option writes, too; give it a file of its own"),
    ("evaluate miniature --profile miniature --samples many", "takes a whole number"),
    ("plan --sleep off", "argument --sleep: 'off' is neither true nor false"),
    ("plan --gpuss 2", "unknown option '--gpuss'; did you mean '--gpus'?"),
    ("plan --model 1.5B --profile rtx4090", "--profile rtx4090 applies to a RECIPE, and none is "
     "given; name one"),
    ("inspect . --guard_reward_facto 3", "did you mean '--guard_reward_factor'"),
    ("inspect . --guard_reward_factor [", "reward_factor is the text '['; it takes a number"),
    ("plan grpo --profile none", "the recipe and its profile 'none' name no model"),
    ("publish {here}/absent", "does not exist; give the folder of a run"),
    ("recipes std_dev_of", "recipe 'std_dev_of' does not exist; did you mean 'std_dev_off'? "
     "Otherwise give a path to a .yaml file, or a name that `trl-ablate recipes` lists"),
    ("study plan", "name one STUDY, or give --all"),
    ("study run std_dev --all", "name one STUDY, or give --all"),
    ("study run --all --only x", "--only applies to one study"),
    ("study run --all --engine slurm", "not with --engine slurm"),
    ("study plan --all gone.yaml", "list of findings gone.yaml does not exist"),
    ("study report", "nothing to report; name a study, or give --curves FILE.csv"),
    ("study report --curves absent.csv", "absent.csv"),
    ("study report std_dev --curves a.csv", "--curves a.csv is reported in place of a study"),
    ("study report std_dev --metric reward", "--metric reward applies to --curves; leave it out"),
    ("study plan std_dev --price_per_hour nan", "'nan' is no number of at least 0"),
    ("study plan std_dev --price_per_hour -1", "'-1' is no number of at least 0"),
    ("judge absent.csv --base -1e-3", "absent.csv"),
    ("study restore std_dev", "so no run is kept of this study"),
    ("study status std_devv", "study 'std_devv' does not exist; did you mean 'std_dev'?"),
    ("train --dry_run", "missing RECIPE, which comes first, such as std_dev_off"),
    ("train std_dev_off --learning_rate 1e-5 high", "learning_rate is the list [1e-05, 'high']; it "
     "takes a number"),
    ("xray --batches 2", "missing ARMS, which come first, such as grpo std_dev_off"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "sentence"), TABLE, ids=[words for words, _ in TABLE])
def test_a_wrong_word(tmp_path, capsys, monkeypatch, words, sentence):
    (tmp_path / "folder.completions.jsonl").mkdir()
    (tmp_path / "zero.json").write_text("[3, 0]")
    monkeypatch.setenv("HF_TOKEN", "hf_" + "TokenOfTheTester012345")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code = main([word.format(here=tmp_path) for word in words.split()])
    printed = capsys.readouterr()
    others = [line for line in printed.out.splitlines() if "profile" not in line]
    assert (code, others) == (2, [])  # evaluate says its profile before it loads a model
    assert printed.err.startswith("error: ") and printed.err.count("\n") == 1
    assert sentence.format(here=tmp_path) in printed.err


def test_a_file_without_permission_is_refused_before_the_work(tmp_path, capsys, monkeypatch):
    """What is written replaces a file; a device is written itself."""
    (tmp_path / "old.png").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: path == Path(os.devnull))
    for name in ("new.png", "old.png"):
        assert main(["inspect", str(STOCK), "--picture", str(tmp_path / name)]) == 2
        said = capsys.readouterr().err
        assert f"no permission to write --picture {tmp_path / name}; give a file in" in said
    assert main(["inspect", str(STOCK), "--picture", os.devnull, "--overwrite"]) == 0


@pytest.mark.parametrize(
    ("words", "seeds", "arms"),
    [
        (["--learning_rate", "1e-5", "3e-5"], (0, 1, 2), [{"learning_rate": 1e-5},
                                                          {"learning_rate": 3e-5}]),
        (["--baseline", "none", "group_mean", "--beta", "0.0", "0.1"], (0, 1, 2),
         [{"baseline": b, "beta": k} for b in ("none", "group_mean") for k in (0.0, 0.1)]),
        (["--seed", "3", "4", "--stop", "a", "b", "--profile", "rtx4090"], (3, 4), [{}]),
    ],
)  # fmt: skip
def test_the_study_that_is_printed_compares_the_values(tmp_path, capsys, words, seeds, arms):
    assert main(["train", "std_dev_off", *words, "--grpo_steps", "4"]) == 2
    _, pasted = capsys.readouterr().err.split("\n\n")
    (tmp_path / "study.yaml").write_text(pasted)
    study = load_study(tmp_path / "study.yaml")
    assert [arm.overrides for arm in study.arms] == arms and study.seeds == seeds
    assert {arm.recipe.name for arm in study.arms} == {"std_dev_off.yaml"}


def test_lists_and_single_values_are_not_several():
    refuse_several("std_dev_off", ["--stop", "a", "b", "--learning_rate", "1e-5"])


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 0, "grpo.yaml on profile 'miniature'"),
        (["grpo", "--profile", "h100"], 1, "missing: GPU"),
        (["grpo", "--profile", "h100", "--vllm_gpu_memory_utilization", "0.03"], 1,
         "missing: memory (estimate); fix: change what `trl-ablate plan` proposes"),
        (["quickstart", "--use_peft", "true", "--beta", "0.1"], 0, "can run here"),
        (["quickstart", "--report_to", "wandb"], 1, "missing: wandb; fix: run pip install wandb"),
        (["grpo", "--profile", "none", "--use_cpu", "true"], 1, "missing: model; fix: give"),
        (["quickstart", "--start", "nope"], 1, "missing: model; fix: add it there"),
        (["quickstart", "--model_name_or_path", "miniature/nope"], 1, "model; fix: it has the"),
        (["quickstart", "--dataset", "no.jsonl"], 1, "missing: data; fix: give a path from"),
        (["quickstart", "--reward_funcs", "no.py:score"], 1, "missing: reward; fix: create it"),
        (["quickstart", "--use_liger_kernel", "true"], 1, "missing: liger-kernel; fix: run pip"),
    ],
)  # fmt: skip
def test_doctor_says_whether_a_recipe_can_run_here(
    tmp_path, capsys, monkeypatch, words, code, said
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(machine, "is_here", lambda package: package == "peft")
    monkeypatch.setattr(integrations, "get_available_reporting_integrations", lambda: ["trackio"])
    assert doctor.main([*words, "--output_dir", str(tmp_path / "run")]) == code
    printed = capsys.readouterr()
    assert said in printed.out and printed.err == "" and " inf " not in printed.out
    for looked_at in ("torch", "Python", "GPU", "GiB free", "Hub token"):
        assert looked_at in printed.out
    assert ("estimate" in printed.out) == ("h100" in words)  # which `plan` knows
    assert ("min on h100" in printed.out) == (words[-1:] == ["h100"])
    assert not (tmp_path / "run").exists()


def test_doctor_names_a_torch_that_cannot_be_imported():
    done = python(
        "import sys\nsys.modules['torch'] = None\n"
        "from trl_ablate.training import machine\n"
        "machine.installed = lambda: {}\n"
        "machine.declared = lambda: ['torch>=2.11']\n"
        "from trl_ablate.cli.doctor import main\nsys.exit(main([]))\n"
    )
    assert (done.returncode, done.stderr) == (1, b"")
    assert b"missing: torch" in done.stdout
