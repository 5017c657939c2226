"""A wrong word ends each command with exit code 2 and one sentence; nothing else is printed.

Several values for one setting are answered with a study that compares them.
"""

import pytest
import torch

from trl_ablate.cli.main import COMMANDS, main
from trl_ablate.cli.train import refuse_several
from trl_ablate.study.definition import load_study

TABLE = [
    ("tarin", "'tarin' is not a command; did you mean 'train'?"),
    ("xyz", f"'xyz' is not a command; use one of {', '.join(COMMANDS)}"),
    ("bench trian", "argument MODE: invalid choice: 'trian'"),
    ("bench train --row 3", "unknown option '--row'; did you mean '--rows'?"),
    ("bench train --output absent/b.json", "the folder of --output absent/b.json does not exist"),
    ("bench reward --count 0", "argument --count: '0' is no whole number of at least 1"),
    ("bench step --rows 100", "--rows 100 is no multiple of --microbatch 64; change one of them"),
    ("bench step --rows 32", "--rows 32 is no multiple of --microbatch 64; change one of them"),
    ("bench train --rows 20", "--rows 20 is no multiple of --group 8; change one of them"),
    ("bench rollout --rows 10 --group 4", "--rows 10 is no multiple of --group 4; change one"),
    ("bench scale --rows 64 8 --processes 1 3", "--rows 64 is no multiple of --microbatch times"),
    ("bench gpu --device cpu --toy --output gpu.md", "--output gpu.md is the name of the page"),
    ("bench gpu --parts speed", "argument --parts: invalid choice: 'speed' (choose from "),
    ("bench gpu --device cpu", "a model of 1.5 B parameters takes hours on a CPU; add --toy"),
    ("bench gpu --device tpu", "argument --device: invalid choice: 'tpu'"),
    ("bench gpu --budget 0", "argument --budget: '0' is no whole number of at least 1"),
    ("bench gpu", "no GPU here; run this on a machine with one, or give --device cpu --toy"),
    ("doctor dapo h100", "unknown argument 'h100'"),
    ("doctor quickstrat", "recipe 'quickstrat' does not exist; did you mean 'quickstart'?"),
    ("evaluate {empty}", "{empty} holds no model"),
    ("evaluate nobody/no-such-model", "checkpoint nobody/no-such-model could not be loaded"),
    ("evaluate miniature --completions", "--completions writes a file next to --output; add"),
    ("evaluate miniature --output {empty}/no/f", "the folder of --output {empty}/no/f does not"),
    ("evaluate miniature --output {empty}", "--output {empty} is a folder; give a file in it"),
    ("evaluate miniature --per_question {empty}", "--per_question {empty} is a folder; give a"),
    ("evaluate miniature --profile miniature --samples many", "takes a whole number"),
    ("evaluate miniature --recipe std_dev_of", "recipe 'std_dev_of' does not exist; did you mean"),
    ("plan --gpu h1000", "argument --gpu: invalid choice: 'h1000'"),
    ("plan --sleep off", "argument --sleep: 'off' is neither true nor false"),
    ("plan --gpuss 2", "unknown option '--gpuss'; did you mean '--gpus'?"),
    ("plan --model 9B", "'9B' is neither a known size"),
    ("plan --model 1.5B --profile rtx4090", "--profile rtx4090 applies to a RECIPE, and none is "
     "given; name one"),
    ("plan grpo --profile none", "the recipe and its profile 'none' name no model"),
    ("publish {empty}/absent", "does not exist; give the folder of a run"),
    ("publish", "the following arguments are required: RUN_DIR"),
    ("recipes std_dev_of", "recipe 'std_dev_of' does not exist; did you mean 'std_dev_off'? "
     "Otherwise give a path to a .yaml file, or a name that `trl-ablate recipes` lists"),
    ("recipes there/grpo.yaml", "recipe there/grpo.yaml does not exist; for the shipped recipe "
     "write grpo"),
    ("recipes --all", "unknown option '--all'; see `trl-ablate recipes --help`"),
    ("check", "missing RECIPE, which comes first, such as my_task/recipe.yaml"),
    ("train --dry_run", "missing RECIPE, which comes first, such as std_dev_off"),
    ("train std_dev_off --learning_rate 1e-5 high", "learning_rate is the list [1e-05, 'high']; it "
     "takes a number"),
    ("xray --batches 2", "missing ARMS, which come first, such as grpo std_dev_off"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "sentence"), TABLE, ids=[words for words, _ in TABLE])
def test_a_wrong_word(tmp_path, capsys, monkeypatch, words, sentence):
    monkeypatch.setenv("HF_TOKEN", "hf_" + "TokenOfTheTester012345")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code = main([word.format(empty=tmp_path) for word in words.split()])
    printed = capsys.readouterr()
    others = [line for line in printed.out.splitlines() if "profile" not in line]
    assert (code, others) == (2, [])  # evaluate says its profile before it loads a model
    assert printed.err.startswith("error: ") and printed.err.count("\n") == 1
    assert sentence.format(empty=tmp_path) in printed.err


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


@pytest.mark.parametrize("words", [["--stop", "a", "b"], ["--learning_rate", "1e-5"]])
def test_lists_and_single_values_are_not_several(words):
    refuse_several("std_dev_off", words)
