"""Settings that would raise during a run, or be ignored, are refused before a model loads."""

import dataclasses
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trl_ablate import AblationConfig, ConfigurationError, load_recipe
from trl_ablate.recipe.agreement import check_quantization
from trl_ablate.recipe.fields import CHOICES, RANGES, USUAL, choices, known_fields
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.settings import Range
from trl_ablate.training.machine import check_device
from trl_ablate.training.rehearsal import (
    check_generation_config,
    check_loader,
    check_optimizer,
)


def resolve(**settings):
    return load_recipe(SHIPPED / "grpo.yaml", "miniature", settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"seed": 2**32}, "seed is 4294967296; it has to be at least 0 and at most 4294967295"),
        ({"temperature": 0.0}, "temperature is 0.0; it has to be more than 0"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0; it has to be 0 or more"),
        ({"learning_rate": 1e308}, "learning_rate 1e+308 times learning_rate_scale 20.0 is"),
        ({"adam_beta2": 1.5}, "adam_beta2 is 1.5; it has to be at least 0 and less than 1"),
        ({"grader_workers": 10**9}, "grader_workers is 1000000000; it has to be at least 1 and at"),
        ({"subset_seed": 2**70}, "1180591620717411303424; it has to be smaller than"),
        ({"guard_window": 1}, "guard_window is 1; it has to be 2 or more"),
        ({"attn_implementation": "paged|sdpa"}, "attn_implementation is 'paged|sdpa'; it takes"),
        ({"dtype": "float64x"}, "dtype is 'float64x'; it takes auto, bfloat16, float16, float32"),
        ({"report_to": ["none", "wandbb"]}, "report_to is 'wandbb'; it takes all, "),
        ({"report_to": None}, "report_to is null; it takes all, "),
        ({"log_level": "a/b"}, "log_level is 'a/b'; it takes critical, "),
        ({"sync_ref_model": True}, "sync_ref_model is true, but beta is 0"),
        ({"remove_unused_columns": True}, "remove_unused_columns is true, but that removes"),
        ({"metric_for_best_model": "eval_rewrd"}, "did you mean 'eval_reward'"),
        ({"generation_kwargs": "x"}, "generation_kwargs is the text 'x', which is not a JSON"),
        ({"accelerator_config": {"dispatch_batches": True}}, "has dispatch_batches, which sends"),
        ({"stop": [""]}, "stop contains an empty text, which ends nothing"),
    ],
)
def test_what_would_raise_under_way_does_not_resolve(settings, said):
    with pytest.raises(ConfigurationError) as raised:
        resolve(**settings)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"use_liger_kernel": True}, "use_liger_kernel is true, but liger-kernel is not installed"),
        ({"report_to": "wandb"}, "report_to is 'wandb', which is not installed"),
    ],
)
def test_what_is_not_installed_is_refused_before_anything_is_loaded(settings, said, monkeypatch):
    monkeypatch.setattr("trl_ablate.training.machine.is_here", lambda package: False)
    with pytest.raises(ConfigurationError, match=said):
        check_device(resolve(**settings))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"optim": "galore_adamw"}, "optim is 'galore_adamw', .*galore_torch"),
        ({"optim_args": "x"}, "optim is 'adamw_torch_fused', with optim_args 'x', "),
        ({"lr_scheduler_type": "warmup_stable_decay"}, "lr_scheduler_type is 'warmup_stable_d"),
        (
            {"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"x": 1}},
            "lr_scheduler_type is 'cosine', with lr_scheduler_kwargs {'x': 1}, .*argument 'x'",
        ),
    ],
)
def test_an_optimizer_that_cannot_be_made_is_refused_before_the_model_is_loaded(settings, said):
    with pytest.raises(ConfigurationError, match=said):
        check_optimizer(resolve(**settings).config)


@pytest.mark.parametrize(
    ("cache", "said"),
    [("offloaded", "this machine has no GPU"), ("offloaded_hybrid", "this machine has no GPU"),
     ("quantized", "optimum-quanto is not installed")],
)  # fmt: skip
def test_a_cache_that_cannot_be_made_here_is_refused(cache, said, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("transformers.utils.is_optimum_quanto_available", lambda: False)
    with pytest.raises(ConfigurationError, match=f"cache_implementation is '{cache}', .*{said}"):
        check_device(resolve(cache_implementation=cache))
    check_device(resolve(cache_implementation="dynamic"))


def test_fsdp_needs_several_processes():
    with pytest.raises(ConfigurationError, match="fsdp .* several processes.*accelerate launch"):
        check_device(resolve(fsdp="full_shard"))


def test_quantized_weights_are_not_trained():
    with pytest.raises(ConfigurationError, match="load_in_4bit needs use_peft: quantized weights"):
        check_quantization(resolve(load_in_4bit=True).model)
    check_quantization(resolve(load_in_4bit=True, use_peft=True).model)


@pytest.mark.parametrize(
    "settings",
    [
        {"dataloader_persistent_workers": True},
        {"dataloader_multiprocessing_context": "fork"},
        {"dataloader_multiprocessing_context": "x", "dataloader_num_workers": 1},
    ],
)
def test_a_data_loader_that_cannot_be_made_is_refused(settings):
    with pytest.raises(ConfigurationError, match=rf"{next(iter(settings))} .*cannot be made here"):
        check_loader(resolve(**settings).config)
    check_loader(resolve(dataloader_num_workers=1, dataloader_prefetch_factor=2).config)


def test_generation_settings_that_transformers_refuses_are_refused():
    with pytest.raises(ConfigurationError, match="generation_kwargs is .*max_new_tokens.* greater"):
        check_generation_config(resolve(generation_kwargs={"max_new_tokens": 0}).config)
    check_generation_config(resolve(generation_kwargs={"do_sample": False}).config)


@pytest.mark.parametrize(
    ("optim", "schedule"),
    [("adamw_torch", "linear"), ("sgd", "cosine"), ("adamw_bnb_8bit", "reduce_lr_on_plateau")],
)
def test_optimizers_that_are_here_pass(optim, schedule):
    check_optimizer(resolve(optim=optim, lr_scheduler_type=schedule).config)


def test_an_optimizer_whose_steps_need_a_gpu_is_refused_on_a_cpu(monkeypatch):
    """As those of bitsandbytes with 8 bits."""
    step = Mock(side_effect=RuntimeError("no kernel for this device"))
    monkeypatch.setattr("torch.optim.SGD.step", step)
    config = resolve(optim="sgd", use_cpu=True).config
    with pytest.raises(ConfigurationError, match="optim is 'sgd', .*no kernel for this device"):
        check_optimizer(config)
    config.use_cpu = False
    check_optimizer(config)


def test_every_range_is_about_a_setting_and_holds_its_default():
    for name in (*RANGES, *CHOICES, *USUAL):
        group, _ = known_fields()[name]
        default = next(one.default for one in dataclasses.fields(group) if one.name == name)
        if name in RANGES and isinstance(default, (int, float)):
            assert default in RANGES[name], name


def test_the_usual_names_are_those_of_transformers():
    from transformers import AttentionInterface
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    assert {*USUAL["attn_implementation"]} - {"eager"} <= {*AttentionInterface().valid_keys()}
    assert {*USUAL["report_to"]} - {"all", "none"} <= {*INTEGRATION_TO_CALLBACK}
    assert "flex_attention" in choices("attn_implementation") and "wandb" in choices("report_to")


def test_the_class_by_itself_takes_what_trl_takes():
    assert AblationConfig(seed=-1, top_k=-1, use_cpu=True, bf16=False).seed == -1


@given(st.floats(-3, 3), *[st.none() | st.floats(-3, 3)] * 4)
def test_a_range_is_what_its_words_say(value, least, most, above, below):
    allowed = Range(least, most, above, below)
    inside = [value >= least if least is not None else True,
              value <= most if most is not None else True,
              value > above if above is not None else True,
              value < below if below is not None else True]  # fmt: skip
    assert (value in allowed) == all(inside)
    words = {"more than": above, "at most": most, "less than": below}
    shown = {word: end for word, end in words.items() if end is not None}
    assert all(f"{word} {end}" in str(allowed) for word, end in shown.items())
