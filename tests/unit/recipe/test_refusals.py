"""What a recipe cannot ask for is refused in one sentence, before a model loads: files that are no
recipes, values that no setting takes, contradictions, and what cannot be made on this machine."""

import dataclasses
from contextlib import nullcontext
from math import inf, nan
from unittest.mock import Mock

import pytest

from trl_ablate import ConfigurationError, load_recipe
from trl_ablate.recipe.agreement import check_quantization
from trl_ablate.recipe.fields import CHOICES, RANGES, choices, known_fields
from trl_ablate.training.building import check_generation_config, check_loader, check_optimizer
from trl_ablate.training.machine import check_device, is_here

BAD_FILES = [
    ("beta: 0.1\nepsilon: 0.2\nbeta: 0.3", "'beta' occurs twice (again in line 3)"),
    ("extends: grop.yaml", "does not exist"),
    ("extends: arm.yaml", "extends itself"),
    ("# nothing\n", "is empty"),
    ("a: [1, 2", "is not valid YAML"),
    ("- a\n- b", "contains a list"),
    ("run_name: &x a\nproject: *x", "aliases"),
    ("1: 2", "the key 1 is not text"),
    ("run_name: !!python/object:os.system x", "tags (!name) are not allowed"),
    ("stop: [" + "a," * 9000 + "]", "more than 5000 keys and values"),
    ("beta: " + "9" * 400, "is too large a number"),
    ('run_name: "a\\0"', "'\\x00' in line 1 is not a readable character"),
    ('run_name: "\\ud800"', "'\\ud800' in line 1 is not a readable character"),
    ("extends: /dev/zero", "is not a regular file"),
    (b"run_name: \xff\xfe", "not UTF-8"),
    ("run_name: " + "x" * 300_000, "the limit is 200000"),
    ("stop: " + "[" * 60 + "]" * 60, "nested too deeply (more than 40 levels)"),
    ("stop: " + "[" * 5000, "nested too deeply"),
]


@pytest.mark.parametrize(("content", "said"), BAD_FILES, ids=range(len(BAD_FILES)))
def test_a_file_that_is_no_recipe(tmp_path, content, said):
    arm = tmp_path / "arm.yaml"
    arm.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigurationError) as raised:
        load_recipe(arm, "miniature")
    assert said in str(raised.value) and "\n" not in str(raised.value)


OF_THE_WORLD = {"reward_funcs": [], "environment_factory": "world.py:World", "eos_penalty": 0.5}
REWARDED_SET = {"evaluation": "trl", "eval_sets": {"a": {"dataset": "gsm8k", "reward": "r1_zero"}}}
NOISE = {"reward_noise": 0.1, "eos_penalty": 1.0}


def a_set(**given):
    return {"eval_sets": {"mine": given}}


def rates(between, **more):
    return {"pass_rate": {"file": "a", "between": between, **more}}


REFUSED = [
    ({"beta": -1.0}, "beta is -1.0; it has to be 0 or more"),
    ({"delta": 0.5}, "delta is 0.5; it has to be more than 1"),
    ({"output_dir": ""}, "output_dir is empty; name a folder"),
    # names and types
    ({"lerning_rate": 1e-5}, "unknown key 'lerning_rate'; did you mean 'learning_rate'"),
    ({"num_iterations": 2.7}, "num_iterations is 2.7; it takes a whole number"),
    ({"num_iterations": True}, "the boolean true; it takes a whole number"),
    ({"beta": "much"}, "beta is the text 'much'; it takes a number"),
    ({"run_name": 12}, "run_name is 12; it takes text"),
    ({"log_completions": "off"}, "'off'; it takes true or false"),
    ({"scale_rewards": False}, "the boolean false; it takes one of group, batch, none"),
    ({"optim": "sdg"}, "it takes one of"),
    ({"starts": {"a": 1}}, "starts is the mapping {'a': 1}; it takes a"),
    ({"reward_funcs": "answer"}, "it takes a list (text or a mapping each) or null"),
    ({"dtype": "float64x"}, "dtype is 'float64x'; it takes auto, bfloat16, float16, float32"),
    ({"report_to": ["none", "wandbb"]}, "report_to is 'wandbb'; it takes all, "),
    # numbers
    ({"beta": inf}, "beta is inf; it has to be a finite number"),
    ({"reward_weights": [1.0, nan]}, "it has to be a finite number"),
    ({"seed": 2**32}, "seed is 4294967296; it has to be at least 0 and at most 4294967295"),
    ({"seed": -1}, "seed is -1; it has to be at least 0"),
    ({"grpo_steps": -1}, "grpo_steps is -1; it has to be 1 or more"),
    ({"temperature": 0.0}, "temperature is 0.0; it has to be more than 0"),
    ({"learning_rate": 1e308}, "learning_rate 1e+308 times learning_rate_scale 20.0 is"),
    ({"learning_rate_scale": 0.0}, "has to be more than 0"),
    ({"adam_beta2": 1.0}, "adam_beta2 is 1.0; it has to be at least 0 and less than 1"),
    ({"subset_seed": 2**70}, "1180591620717411303424; it has to be smaller than"),
    ({"guard_window": 1}, "guard_window is 1; it has to be 2 or more"),
    # what a library ignores, or refuses late
    ({"sync_ref_model": True}, "sync_ref_model is true, but beta is 0"),
    ({"remove_unused_columns": True}, "remove_unused_columns is true, but that removes"),
    ({"generation_kwargs": "x"}, "generation_kwargs is the text 'x', which is not a JSON"),
    ({"accelerator_config": {"dispatch_batches": True}}, "has dispatch_batches, which sends"),
    ({"stop": [""]}, "stop contains an empty text, which ends nothing"),
    ({"length_norm": "mean", "loss_type": "dapo"}, "built on loss_type 'grpo'"),  # of the class
    ({"generation_batch_size": 100}, "must be divisible"),  # of TRL
    # the metric that is followed
    ({"best_metric": "eval_truncated"}, "a lower value is better, and the highest is kept"),
    ({"best_metric": "eval_rewards"}, "did you mean 'eval_reward'"),
    ({"best_metric": "eval_pass@4"}, "is not a metric of this evaluation"),
    ({"best_metric": "eval_reward/level=3", "eval_by": None}, "is not a metric of this evaluation"),
    ({"metric_for_best_model": "eval_rewrd"}, "did you mean 'eval_reward'"),
    ({"eval_sets": {"mine": "a.jsonl"}, "best_metric": "eval_our_reward"}, "not a metric of"),
    ({"evaluation": "trl", "num_generations_eval": 4, "best_metric": "eval_pass@4"},
     "best_metric 'eval_pass@4' needs evaluation 'one_shot', but evaluation is 'trl'"),
    # evaluation sets and pass rates
    ({"eval_sets": {"answer": "a.jsonl"}}, "the metric 'eval_answer_reward' twice"),
    ({"eval_sets": {"my set": "a.jsonl"}}, "eval_sets has 'my set'"),
    ({"eval_sets": {"mine": 3}}, "{'mine': 3}; it takes a mapping (text or a mapping each)"),
    (a_set(sise=3), "'mine' has the unknown key 'sise'; use dataset"),
    (a_set(size="3"), "size of 'mine' is '3'; give a whole number"),
    (a_set(levels="12"), "levels of 'mine' is '12'; give a list"),
    (a_set(size=0), "eval_size is 0"),
    (a_set(reward_funcs=["anser"]), "did you mean 'answer'"),
    (a_set(reward_funcs=[5]), "reward_funcs has '5'; give"),
    (a_set(reward="nonsense"), "template='nonsense' is unknown"),
    (a_set(filter=["level > 2", 5]), "filter of 'mine' is \"['level > 2', 5]\"; give texts"),
    (rates([1, 0]), "between is '[1, 0]'; give the lowest and the highest rate, from 0 to 1"),
    (rates([0, 1], file=1), "give {file: rates.jsonl, between: [0.1, 0.9]}"),
    ({"pass_rate": {"file": "a"}}, "give {file: rates.jsonl, between: [0.1, 0.9]}"),
    # templates and rewards
    ({"template": "r1zero"}, "template='r1zero' is unknown"),
    ({"template": "mine.txt"}, "is a file, which implies no reward; set reward_funcs, or"),
    ({"template": "mine.txt", "reward_funcs": ["answer"]}, "'answer', which reads the format"),
    ({"reward_funcs": []}, "reward_funcs is an empty list"),
    (OF_THE_WORLD, "eos_penalty is 0.5, but reward_funcs is []"),
    (REWARDED_SET, "the reward of 'a' needs evaluation 'one_shot'"),
    ({"reward_funcs": [{"path": "answer", "weight": 2}], "reward_weights": [1]},
     "reward_funcs gives answer a weight of its own; remove one"),
    ({"outcome_gate": "answer"}, "'answer', but the reward functions are r1_zero; name one"),
    ({"outcome_gate": "x", "eos_penalty": 1.0}, "functions are r1_zero, eos_penalty; name one"),
    (NOISE, "leave eos_penalty out, or set outcome_gate to r1"),
    ({"reward_noise": 0.1, "reward_funcs": ["answer", "eos_penalty"]}, "outcome_gate to answer"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "said"), REFUSED)
def test_settings_that_are_refused(settings, said):
    with pytest.raises(ConfigurationError) as raised:
        load_recipe("grpo", "miniature", settings)
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_settings_that_are_near_to_refused_ones():
    sets = {"eval_sets": {"mine": "a.jsonl"}, "num_generations_eval": 4}
    for settings in (
        {**sets, "best_metric": "eval_mine_pass@4"},
        {"eval_by": "level", "best_metric": "eval_reward/level=3"},
        {"best_metric": "eval_rewards/r1_zero/mean"},
        {"reward_funcs": ["a.correct", "b.correct"], "best_metric": "eval_rewards/correct/mean"},
        {**NOISE, "outcome_gate": "r1_zero"},
    ):
        assert settings.items() <= load_recipe("grpo", "miniature", settings).settings.items()


COSINE = {"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"x": 1}}
REFUSED_HERE = {
    check_device: [
        ({"use_liger_kernel": True}, "use_liger_kernel is true, but liger-kernel is not installed"),
        ({"report_to": "wandb"}, "report_to is 'wandb', which is not installed"),
        ({"cache_implementation": "offloaded"}, "'offloaded', .*this machine has no GPU"),
        ({"start": "nope"}, "start is 'nope', but profile 'miniature' has no such entry"),
        ({"model_name_or_path": "miniature/nope"}, "'miniature/nope' is no world and no stage"),
        ({"fsdp": "full_shard"}, "fsdp .* several processes.*accelerate launch"),
        ({"cache_implementation": "dynamic"}, None),
    ],
    check_optimizer: [
        ({"optim": "galore_adamw"}, "optim is 'galore_adamw', .*galore_torch"),
        ({"lr_scheduler_type": "warmup_stable_decay"}, "lr_scheduler_type is 'warmup_stable_d"),
        (COSINE, "is 'cosine', with lr_scheduler_kwargs {'x': 1}, .*argument 'x'"),
        ({"optim": "adamw_bnb_8bit", "lr_scheduler_type": "reduce_lr_on_plateau"}, None),
    ],
    check_quantization: [
        ({"load_in_4bit": True}, "load_in_4bit needs use_peft: quantized weight"),
        ({"load_in_8bit": True, "use_peft": True, "use_vllm": True}, "load_in_8bit and use_vllm"),
        ({"load_in_4bit": True, "use_peft": True}, None),
    ],
    check_loader: [
        ({"dataloader_persistent_workers": True}, "persistent_workers .*cannot be made here"),
        ({"dataloader_num_workers": 1, "dataloader_prefetch_factor": 2}, None),
    ],
    check_generation_config: [
        ({"generation_kwargs": {"max_new_tokens": 0}}, "generation_kwargs is .*max_new.* greater"),
        ({"generation_kwargs": {"do_sample": False}}, None),
    ],
}


@pytest.mark.parametrize(
    ("check", "settings", "said"),
    [(check, *case) for check, cases in REFUSED_HERE.items() for case in cases],
)
def test_what_cannot_be_made_here(check, settings, said, monkeypatch):
    monkeypatch.setattr("trl_ablate.training.machine.is_here", lambda package: False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    resolved = load_recipe("grpo", "miniature", settings)
    parts = {check_device: (resolved,), check_quantization: (resolved.config, resolved.model)}
    with pytest.raises(ConfigurationError, match=said) if said else nullcontext():
        check(*parts.get(check, (resolved.config,)))


def test_an_optimizer_whose_steps_need_a_gpu_is_refused_on_a_cpu(monkeypatch):
    """As those of bitsandbytes with 8 bits."""
    step = Mock(side_effect=RuntimeError("no kernel for this device"))
    monkeypatch.setattr("torch.optim.SGD.step", step)
    config = load_recipe("grpo", "miniature", {"optim": "sgd", "use_cpu": True}).config
    with pytest.raises(ConfigurationError, match="optim is 'sgd', .*no kernel for this device"):
        check_optimizer(config)
    config.use_cpu = False
    check_optimizer(config)


def test_a_package_may_be_installed_under_another_name():
    assert is_here("math-verify")
    assert is_here("yaml"), "as vLLM's build for CPUs, whose distribution has another name"
    assert not is_here("no-such-package")


def test_ranges_and_choices_are_about_settings_and_hold_their_defaults():
    for name in (*RANGES, *CHOICES):
        group, _ = known_fields()[name]
        default = next(one.default for one in dataclasses.fields(group) if one.name == name)
        if name in RANGES and isinstance(default, (int, float)):
            assert default in RANGES[name], name
    assert "flex_attention" in choices("attn_implementation") and "wandb" in choices("report_to")
