"""`AblationConfig` alone: derived values and refused settings."""

import pytest
from trl import GRPOConfig

from trl_ablate import AblationConfig, ConfigurationError


def config(**settings) -> AblationConfig:
    return AblationConfig(output_dir="unused", use_cpu=True, bf16=False, **settings)


def test_the_defaults_are_stock_trl():
    stock = GRPOConfig(output_dir="unused", use_cpu=True, bf16=False).to_dict()
    ours = config().to_dict()
    assert {key: ours[key] for key in stock} == stock


def test_what_follows_from_one_setting():
    assert config(deterministic=True).full_determinism
    assert config(max_steps=3, grpo_steps=50).max_steps == 3
    assert config(scale_rewards=True).scale_rewards == "group"
    assert config(scale_rewards=False).scale_rewards == "none"
    assert config(seed=-1, top_k=-1).seed == -1  # TRL takes it; a recipe does not


@pytest.mark.parametrize(
    ("length_norm", "loss_type"),
    [("mean", "grpo"), ("constant", "dr_grpo"), ("microbatch", "dr_grpo"), ("token", "dapo"),
     ("nonzero", "dapo"), ("prompt", "dapo")],
)  # fmt: skip
def test_a_length_norm_chooses_the_loss_type_it_rides_on(length_norm, loss_type):
    assert config(length_norm=length_norm).loss_type == loss_type
    assert config(length_norm=length_norm, loss_type=loss_type).loss_type == loss_type
    with pytest.raises(ConfigurationError, match="remove one of the two"):
        config(length_norm=length_norm, loss_type="bnpo")


@pytest.mark.parametrize(
    ("epochs", "rollout", "accumulated", "updates", "on_policy", "max_steps", "together"),
    [
        (1, 4, 4, 1, True, 12, 4),
        (1, 4, 2, 2, False, 24, 2),
        (2, 4, 4, 2, False, 24, 4),
        (4, 4, 1, 16, False, 192, 1),
        (1, 2, 4, 1, True, 6, 2),  # an optimizer step takes several rollout batches
        (1, 2, 6, 1, True, 4, 2),
        (1, 1, 3, 1, True, 4, 1),
        (1, 4, 6, 1, False, None, 1),  # neither divides the other: no whole GRPO steps
        (1, 6, 4, 1, False, None, 1),
    ],
)
def test_what_follows_from_the_sizes_of_batches(
    epochs, rollout, accumulated, updates, on_policy, max_steps, together
):
    """In microbatches: those of a rollout batch, of an optimizer step, and those whose rows may be
    dealt by length, as every step sums the whole group of them."""
    sizes = {"steps_per_generation": rollout, "gradient_accumulation_steps": accumulated}
    sizes |= {"num_iterations": epochs, "grpo_steps": 12 if max_steps else None}
    got = config(**sizes)
    assert (got.optimizer_steps_per_rollout, got.on_policy) == (updates, on_policy)
    assert got.max_steps == (max_steps or -1)
    assert got.regrouped_together == together
    for alone in ({"regroup_by_length": False}, {"length_norm": "microbatch"}):
        assert config(**sizes, **alone).regrouped_together == 1


def test_an_optimizer_batch_is_accumulated_by_all_processes(monkeypatch):
    batches = {"optimizer_batch_size": 128, "per_device_train_batch_size": 16}
    assert config(**batches).gradient_accumulation_steps == 8
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ConfigurationError, match="96 is not a multiple of the 64 completions that"):
        config(**batches | {"optimizer_batch_size": 96})


OF_EACH_REWARD = {"multi_objective_aggregation": "normalize_then_sum"}
PARTS = {"steps_per_generation": 2, "grpo_steps": 3}
CONTINUOUS = {"use_transformers_continuous_batching": True}
VLLM = {"use_vllm": True}
REFUSED = [
    ({"placebo": "sugar"}, "placebo is 'sugar'; allowed: random, length, constant, None"),
    ({"baseline": "leave_one_out", "num_generations": 1}, "num_generations is 1"),
    ({"baseline": "best_of_others", "best_of": 9}, "best_of is 9, but a group has 8"),
    ({"kl_in": "reward", "hard_group_exponent": 1.0, **OF_EACH_REWARD},
     "hard_group_exponent 1.0 and kl_in reward acts on the sum of the rewards"),
    ({"baseline": "none", **OF_EACH_REWARD}, "use 'sum_then_normalize'"),
    ({"reward_noise": 1.5}, "reward_noise is 1.5; it has to be at least 0 and at most 1"),
    ({"surrogate": "probability", "delta": 2.0}, "by delta, but delta is 2.0; remove delta, or"),
    ({"surrogate": "geometric", "delta": 2.0}, "by delta, but delta is 2.0; remove delta, or use"),
    ({"sampler_dtype": "int8", "repetition_penalty": 1.1},
     "repetition_penalty 1.1 changes the sampling distribution"),
    ({"rollout_staleness": 1, "generation_kwargs": {"top_p": 0.9}},
     "top_p in generation_kwargs changes the sampling distribution"),
    ({"correct_truncation": True, "generation_kwargs": {"top_p": 0.9}}, "top_p in generation"),
    ({"num_iterations": 0}, "num_iterations is 0; it has to be 1 or more"),
    ({"min_tokens": 99, "max_completion_length": 12}, "min_tokens 99 is more than"),
    ({"stop": "</answer>"}, "stop is '</answer>'; give a list of texts such as ['</answer>']"),
    ({"generation_kwargs": {"seed": 1}}, "remove it and use --seed"),
    ({"generation_kwargs": {"num_return_sequences": 2}}, "has num_return_sequences 2, but"),
    ({"loss_type": "sapo", "surrogate": "clip"}, "has its own objective"),
    ({"positive_weight": 0, "negative_weight": 0}, "so no completion has a gradient"),
    ({"positive_weight": 0, "baseline": "best_of_others"}, "makes no advantage negative"),
    ({"placebo": "constant"}, "placebo 'constant' gives no gradient with baseline 'group_mean'"),
    ({"placebo": "constant", "baseline": "none", "scale_rewards": "none", "group_filter": "drop"},
     "group_filter 'drop' and hard_group_exponent 0.0, as all rewards are 1"),
    ({"eval_by": "level"}, "eval_by 'level' needs evaluation 'one_shot'"),
    ({"eval_temperature": 0.0}, "is greedy, so the 8 samples of a prompt"),
    ({"eval_top_p": 0.0}, "it has to be more than 0 and at most 1"),
    ({**PARTS, "gradient_accumulation_steps": 3}, "whole optimizer steps, but 2 microbatches"),
    ({**PARTS, "gradient_accumulation_steps": 4},
     "grpo_steps 3 does not fill its last optimizer step, which takes 2 rollout"),
    ({"min_tokens": 2, **CONTINUOUS}, "min_tokens to 0, or use_transformers_continuous_batching"),
    ({**VLLM, "deterministic": True, "vllm_mode": "server"}, "does not reach a vLLM server"),
    ({**VLLM, "max_completion_length": 512, "vllm_max_model_length": 512},
     "max_completion_length 512 leaves no tokens for a prompt in vllm_max_model_length 512"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "sentence"), REFUSED)
def test_contradictions_name_the_value_and_the_change(settings, sentence):
    with pytest.raises(ConfigurationError) as caught:
        config(**settings)
    assert sentence in str(caught.value)
