"""Settings that would raise during a run, or be ignored, are refused before a model loads."""

import dataclasses
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trl_ablate import AblationConfig, ConfigurationError, load_recipe
from trl_ablate.recipe.agreement import check_quantization
from trl_ablate.recipe.fields import CHOICES, RANGES, choices, known_fields
from trl_ablate.settings import Range
from trl_ablate.training.building import check_generation_config, check_loader, check_optimizer
from trl_ablate.training.machine import check_device, is_here


def resolve(**settings):
    return load_recipe("grpo", "miniature", settings)


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


COSINE = {"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"x": 1}}
LOADER = "dataloader_multiprocessing_context"
REFUSED = {
    check_device: [
        ({"use_liger_kernel": True}, "use_liger_kernel is true, but liger-kernel is not installed"),
        ({"report_to": "wandb"}, "report_to is 'wandb', which is not installed"),
        ({"cache_implementation": "offloaded"}, "'offloaded', .*this machine has no GPU"),
        ({"cache_implementation": "offloaded_hybrid"}, "'offloaded_hybrid', .*has no GPU"),
        ({"cache_implementation": "quantized"}, "'quantized', .*optimum-quanto is not installed"),
        ({"fsdp": "full_shard"}, "fsdp .* several processes.*accelerate launch"),
    ],
    check_optimizer: [
        ({"optim": "galore_adamw"}, "optim is 'galore_adamw', .*galore_torch"),
        ({"optim_args": "x"}, "optim is 'adamw_torch_fused', with optim_args 'x', "),
        ({"lr_scheduler_type": "warmup_stable_decay"}, "lr_scheduler_type is 'warmup_stable_d"),
        (COSINE, "is 'cosine', with lr_scheduler_kwargs {'x': 1}, .*argument 'x'"),
    ],
    check_quantization: [
        ({"load_in_4bit": True}, "load_in_4bit needs use_peft: quantized weight"),
        ({"load_in_8bit": True, "use_peft": True, "use_vllm": True}, "load_in_8bit and use_vllm"),
    ],
    check_loader: [
        ({"dataloader_persistent_workers": True}, "persistent_workers .*cannot be made here"),
        ({LOADER: "fork"}, f"{LOADER} .*cannot be made here"),
        ({LOADER: "x", "dataloader_num_workers": 1}, f"{LOADER} .*cannot be made here"),
    ],
    check_generation_config: [
        ({"generation_kwargs": {"max_new_tokens": 0}}, "generation_kwargs is .*max_new.* greater"),
    ],
}
ACCEPTED = {
    check_device: [{"cache_implementation": "dynamic"}],
    check_optimizer: [
        {"optim": "adamw_torch", "lr_scheduler_type": "linear"},
        {"optim": "sgd", "lr_scheduler_type": "cosine"},
        {"optim": "adamw_bnb_8bit", "lr_scheduler_type": "reduce_lr_on_plateau"},
    ],
    check_quantization: [{"load_in_4bit": True, "use_peft": True}],
    check_loader: [{"dataloader_num_workers": 1, "dataloader_prefetch_factor": 2}],
    check_generation_config: [{"generation_kwargs": {"do_sample": False}}],
}


@pytest.mark.parametrize(
    ("check", "settings", "said"),
    [(check, *case) for check, cases in REFUSED.items() for case in cases]
    + [(check, settings, None) for check, cases in ACCEPTED.items() for settings in cases],
)
def test_what_cannot_be_made_is_refused_before_anything_is_loaded(
    check, settings, said, monkeypatch
):
    monkeypatch.setattr("trl_ablate.training.machine.is_here", lambda package: False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("transformers.utils.is_optimum_quanto_available", lambda: False)
    resolved = resolve(**settings)
    parts = {check_device: (resolved,), check_quantization: (resolved.config, resolved.model)}
    with pytest.raises(ConfigurationError, match=said) if said else nullcontext():
        check(*parts.get(check, (resolved.config,)))


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
    for name in (*RANGES, *CHOICES):
        group, _ = known_fields()[name]
        default = next(one.default for one in dataclasses.fields(group) if one.name == name)
        if name in RANGES and isinstance(default, (int, float)):
            assert default in RANGES[name], name


def test_the_usual_names_are_those_of_transformers():
    from transformers import AttentionInterface
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    assert {*CHOICES["attn_implementation"]} - {"eager"} <= {*AttentionInterface().valid_keys()}
    assert {*CHOICES["report_to"]} - {"all", "none"} <= {*INTEGRATION_TO_CALLBACK}
    assert "flex_attention" in choices("attn_implementation") and "wandb" in choices("report_to")


def test_the_class_by_itself_takes_what_trl_takes():
    assert AblationConfig(seed=-1, top_k=-1, use_cpu=True, bf16=False).seed == -1


@given(st.floats(-3, 3), *[st.none() | st.floats(-3, 3)] * 4)
def test_a_range_is_what_its_words_say(value, least, most, above, below):
    allowed = Range(least, most, above, below)
    inside = (
        (least is None or value >= least)
        and (most is None or value <= most)
        and (above is None or value > above)
        and (below is None or value < below)
    )
    assert (value in allowed) == inside
    for word, end in {"more than": above, "at most": most, "less than": below}.items():
        assert end is None or f"{word} {end}" in str(allowed)


def test_a_package_may_be_installed_under_another_name():
    assert is_here("math-verify")
    assert is_here("yaml"), "as vLLM's build for CPUs, whose distribution has another name"
    assert not is_here("no-such-package")
