"""A configuration of `trl grpo` is a recipe: the same questions, rewards and weights."""

import json
import os

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, Qwen2ForSequenceClassification

from tests.support.tiny_models import tiny_config
from tests.support.trainers import PROMPTS
from trl_ablate.cli import train
from trl_ablate.errors import ConfigurationError
from trl_ablate.recipe.resolving import load_recipe
from trl_ablate.study.definition import load_study
from trl_ablate.study.resolution import resolve_plan

REWARD = """
def even(completions, level, **kwargs):
    return [float((len(text) + n) % 2) for text, n in zip(completions, level, strict=True)]
"""

YAML = """
model_name_or_path: {model}
reward_model_name_or_path: {judge}
dataset_name: {data}
dataset_train_split: train
reward_funcs: [even_rewards.even, get_soft_overlong_punishment]
reward_weights: [0.5, 1.0, 0.25]
env:
  SEEN_BY_TRL: 1
output_dir: {out}
learning_rate: "1e-2"
max_steps: 3
logging_steps: 1
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
num_generations: 4
max_completion_length: 12
report_to: none
save_strategy: "no"
use_cpu: true
bf16: no
gradient_checkpointing: false
disable_tqdm: true
"""

AS_PADDED = ("--trim_microbatches", "false", "--regroup_by_length", "false")


@pytest.fixture
def folder(tmp_path, monkeypatch, tiny_model):
    rows = [{"prompt": text, "level": row % 3} for row, text in enumerate(PROMPTS)]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "even_rewards.py").write_text(REWARD)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    torch.manual_seed(1)
    judge = Qwen2ForSequenceClassification(tiny_config(tokenizer, num_labels=1))
    judge.save_pretrained(tmp_path / "judge")
    tokenizer.save_pretrained(tmp_path / "judge")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.delenv("SEEN_BY_TRL", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def write(folder, model, out, extra=""):
    text = YAML.format(model=model, judge=folder / "judge", data=folder / "data", out=folder / out)
    (folder / f"{out}.yaml").write_text(text + extra)
    return folder / f"{out}.yaml"


EVALUATING = "eval_strategy: steps\neval_steps: 2\nper_device_eval_batch_size: 4\n"


@pytest.mark.sample(1)
@pytest.mark.parametrize("extra", [EVALUATING, ""], ids=["evaluating", "no test split"])
def test_a_configuration_of_trl_grpo_trains_to_the_same_bits(folder, tiny_model, extra):
    """Without an evaluation the data need no test split; with one, it is TRL's own evaluation."""
    from trl.scripts import grpo

    if extra:
        four_rows = (folder / "data" / "train.jsonl").read_text().splitlines()[:4]
        (folder / "data" / "test.jsonl").write_text("\n".join(four_rows))
    written = ["--config", str(write(folder, tiny_model, "stock", extra))]
    grpo.main(*grpo.make_parser().parse_args_and_config(written))
    assert train.main([str(write(folder, tiny_model, "ours", extra)), *AS_PADDED]) == 0
    stock = load_file(folder / "stock" / "model.safetensors")
    ours = load_file(folder / "ours" / "checkpoint_last" / "model.safetensors")
    before = load_file(f"{tiny_model}/model.safetensors")
    assert stock.keys() == ours.keys()
    assert all(torch.equal(stock[name], ours[name]) for name in stock)
    assert not all(torch.equal(stock[name], before[name]) for name in stock)
    logged = [json.loads(line) for line in (folder / "ours" / "metrics.jsonl").open()]
    names = ("judge", "even", "soft_overlong_punishment_reward")
    assert {f"rewards/{name}/mean" for name in names} <= logged[0].keys()
    assert os.environ["SEEN_BY_TRL"] == "1"


def test_its_settings_are_those_of_trl(folder, tiny_model):
    in_trl_alone = "scale_rewards: false\nlora_target_modules: all-linear\n"
    found = load_recipe(write(folder, tiny_model, "ours", in_trl_alone))
    assert found.config.scale_rewards == "none" and found.model.lora_target_modules == "all-linear"
    assert (found.profile, found.task.eval_split, found.task.eval_size) == ("none", "test", None)
    assert (found.config.bf16, found.config.learning_rate, found.config.seed) == (False, 1e-2, 42)
    assert found.config.eval_strategy == "no" and found.config.stop is None


def test_an_arm_of_a_study_leaves_no_variable_to_the_next(folder, tiny_model):
    write(folder, tiny_model, "ours", "")
    (folder / "study.yaml").write_text(
        "question: q\narms: [ours.yaml]\nseeds: [0]\nprofile: none\n"
    )
    resolve_plan(load_study(folder / "study.yaml"))
    assert "SEEN_BY_TRL" not in os.environ


FILE = YAML.format(model="some/model", judge="a/judge", data="some/data", out="runs")


@pytest.mark.parametrize(
    ("start", "extra", "sentence"),
    [
        (FILE, "datasets: [{path: a}]\n", "datasets of `trl grpo` is not supported; name one data"),
        (FILE, "dataset: math\n", "has dataset_name, which belongs to `trl grpo`, and dataset"),
        (FILE, "dataset_streaming: true\n", "dataset_streaming of `trl grpo` is not supported"),
        (FILE, "learning_rat: 1\n", "unknown key 'learning_rat'.*learning_rate"),
        ("dataset_name: some/data\n", "", "names no reward; add reward_funcs"),
        ("dataset_name: some/data\nreward_funcs: 5\n", "", "reward_funcs is 5; give a list"),
        ("dataset_name: some/data\n", "env: {A=B: 1}\n", "env is .*; give a mapping"),
    ],
)
def test_what_it_cannot_run_is_refused(tmp_path, start, extra, sentence):
    (tmp_path / "x.yaml").write_text(start + extra)
    with pytest.raises(ConfigurationError, match=sentence):
        load_recipe(tmp_path / "x.yaml")
