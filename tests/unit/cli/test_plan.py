"""`trl-ablate plan`: what it prints, takes from recipes, and refuses."""

import json
import re

import pytest

from trl_ablate.cli.plan import main
from trl_ablate.errors import ConfigurationError
from trl_ablate.plan.estimate import plan
from trl_ablate.plan.recipes import from_recipe, size_in
from trl_ablate.plan.setup import OPTIONS, Setup

SHARDED = ["--model", "7B", "--gpus", "8", "--sharding", "zero3"]


def test_every_assumption_is_printed_with_its_value_and_origin(capsys):
    assert main([*SHARDED, "--mfu", "0.4"]) == 0
    printed = capsys.readouterr().out
    rows = dict(re.findall(r"^--(\w+) +(\S+ +\w+)", printed, re.MULTILINE))
    assert rows.keys() == OPTIONS.keys()
    origins = {name: value.split() for name, value in rows.items()}
    assert origins["mfu"] == ["0.4", "given"] and origins["rollouts"] == ["256", "default"]
    assert "7.62 B parameters, on 8 × h100" in printed
    assert "NVIDIA H100 SXM data sheet" in printed


def as_json(capsys, *words: str, code: int = 0) -> dict:
    assert main([*words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_what_does_not_fit_in_words_and_as_json(capsys):
    assert main(SHARDED[:4]) == 1
    printed = capsys.readouterr().out
    assert "does not fit: training needs 190.6 GiB on a card" in printed
    assert "--sharding zero3" in printed and "seconds of a step" not in printed
    found = as_json(capsys, *SHARDED)
    assert found["fits"] and found["assumptions"]["model"] == "7B"
    parts = [sum(phase.values()) for phase in found["seconds"].values()]
    assert found["seconds_per_step"] == pytest.approx(sum(parts))
    found = as_json(capsys, "--model", "72B", code=1)  # its engine has no room
    assert not found["fits"] and found["seconds"]["rollout"]["decoding"] is None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("grpo --profile rtx4090", {
            "model": "1.5B", "gpu": "rtx4090", "rollouts": 256, "max_length": 1024,
            "microbatch": 1, "weights": "float32", "optimizer": "adamw_8bit",
            "checkpointing": True, "lora_rank": 0, "engine": "vllm", "engine_share": 0.2,
            "sleep": True, "epochs": 1, "optimizer_steps": 1, "steps": 200, "evaluations": 51,
            "eval_questions": 1024, "padded": False}),
        ("qlora --profile h100 --model 7B --rollouts 512",
         {"model": "7B", "rollouts": 512, "lora_rank": 16, "quantized": "4bit"}),
    ],
)  # fmt: skip
def test_settings_of_a_recipe_and_its_profile_and_options_over_them(capsys, words, expected):
    found = as_json(capsys, *words.split())["assumptions"]
    assert {name: found[name] for name in expected} == expected


def test_sizes_in_names(tmp_path):
    assert size_in("Qwen/Qwen2.5-Math-1.5B") == "1.5B"
    assert size_in("Qwen/Qwen2.5-7B-Instruct") == "7B"
    file = tmp_path / "config.json"
    file.touch()
    for known in ("miniature", "7b", str(file), str(tmp_path)):
        assert size_in(known) == known
    for name in ("HuggingFaceTB/SmolLM2-1.7B-Instruct", "some/model-9B"):
        with pytest.raises(ConfigurationError, match="is no size that is known"):
            size_in(name)


def evaluated(every: float) -> dict:
    """A fraction is a share of the run's steps, rounded up."""
    return {"eval_strategy": "steps", "grpo_steps": 200, "eval_steps": every, "eval_on_start": True}


@pytest.mark.parametrize(("settings", "expected"), [
    (evaluated(4), {"evaluations": 51}),
    (evaluated(0.3), {"evaluations": 5}),  # the last step, too
    ({**evaluated(10), "eval_delay": 100, "num_iterations": 2}, {"evaluations": 17}),
    (evaluated(0.001), {"evaluations": 201}),
    ({"eval_strategy": "no", "grpo_steps": 9, "eval_steps": 3}, {"evaluations": 0}),
    ({"max_completion_length": 256}, {"max_length": 256, "mean_length": 256}),
    ({"max_completion_length": 8, "dataset": "miniature/words"}, {"mean_length": 8}),
    ({"eval_size": 100, "num_generations_eval": 8}, {"eval_questions": 800}),
    ({"generation_batch_size": 256, "optimizer_batch_size": 512}, {"optimizer_steps": 1}),
    ({"optim": "adamw_8bit"}, {"optimizer": "adamw_8bit"}),
    ({"optim": "adamw_torch_fused"}, {"optimizer": "adamw"}),
    ({"optim": "adamw_torch_fused", "dtype": "bfloat16"}, {"optimizer": "adamw_bf16"}),
    ({"optim": "adamw_torch_fused", "dtype": "bfloat16", "use_peft": True, "lora_r": 8},
     {"optimizer": "adamw"}),
    ({"optim": "adafactor", "dtype": "bfloat16"}, {"optimizer": "adamw"}),
    ({"optim": "adamw_torch", "dtype": "float16"},
     {"weights": "bfloat16", "optimizer": "adamw_bf16"}),
    ({"dtype": "auto"}, {"weights": "bfloat16"}),
    ({"dtype": "float32", "model_init_kwargs": {"dtype": "float16"}}, {"weights": "bfloat16"}),
    ({"beta": 0.04}, {"reference": True, "extra_forwards": 1}),
    ({"beta": 0.04, "use_peft": True, "lora_r": 8}, {"reference": False, "extra_forwards": 1}),
    ({"generation_batch_size": 8, "optimizer_batch_size": 4},
     {"reference": None, "extra_forwards": 1}),
    ({"beta": 0.04, "num_iterations": 2}, {"reference": True, "extra_forwards": 2}),
    ({"use_vllm": True, "reuse_forward": False}, {"extra_forwards": 1}),
    ({"use_vllm": True, "reuse_forward": False, "num_iterations": 2}, {"extra_forwards": 1}),
    ({"use_vllm": True, "reuse_forward": True}, {"extra_forwards": None}),
    ({"use_vllm": True, "reuse_forward": False, "vllm_importance_sampling_correction": False},
     {"extra_forwards": None}),
    ({"beta": 0.0, "num_iterations": 1, "eval_size": None},
     {"reference": None, "extra_forwards": None, "eval_questions": None, "lora_rank": 0}),
])  # fmt: skip
def test_sizes_evaluations_and_models_of_a_recipe(settings, expected):
    found = from_recipe({"model_name_or_path": "x/y-7B", **settings}, "mine")
    assert {name: found.get(name) for name in expected} == expected
    if "generation_batch_size" not in settings:  # of which 8 are no whole number of microbatches
        plan(Setup(**found))


def test_what_no_layer_sets_is_that_of_the_training(capsys, tmp_path):
    """A configuration of `trl grpo` has TRL's defaults."""
    file = tmp_path / "file.yaml"
    file.write_text(
        "dataset_name: mine\nreward_funcs: [accuracy_reward]\nmodel_name_or_path: x/y-7B\n"
        "gradient_accumulation_steps: 8\nsteps_per_generation: 16\nmax_steps: 1000\n"
    )
    expected = {"rollouts": 128, "microbatch": 8, "max_length": 512, "checkpointing": True,
                "steps": 500, "optimizer_steps": 2, "evaluations": 0, "sleep": False}  # fmt: skip
    assert expected.items() <= as_json(capsys, str(file), code=1)["assumptions"].items()


def test_a_language_model_on_a_laptop(capsys):
    """Measured on two cores: 12.2 s a step, 60 steps and one evaluation in 837 s."""
    found = as_json(capsys, "words")
    expected = {"model": "135M", "gpu": "cpu-bf16", "rollouts": 64, "max_length": 48,
                "sharing": 8, "prompt_tokens": 54, "evaluations": 1,
                "eval_questions": 1200, "eval_batch": 240}  # fmt: skip
    assert {name: found["assumptions"][name] for name in expected} == expected
    assert found["parameters"] == pytest.approx(134_515_008, rel=1e-3)
    assert found["seconds_per_step"] == pytest.approx(12.2, rel=0.3)
