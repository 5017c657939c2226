"""`AblationConfig` alone: derived values and refused settings."""

import pytest

from trl_ablate import AblationConfig, ConfigurationError
from trl_ablate.settings import choices
from trl_ablate.switches import LengthNorm, Scale
from trl_ablate.task import TaskArguments


def config(**settings) -> AblationConfig:
    return AblationConfig(output_dir="unused", use_cpu=True, bf16=False, **settings)


def test_the_defaults_are_stock_trl():
    from trl import GRPOConfig

    stock = GRPOConfig(output_dir="unused", use_cpu=True, bf16=False).to_dict()
    ours = config().to_dict()
    assert {key: ours[key] for key in stock} == stock
    assert (ours["baseline"], ours["advantage_eps"]) == ("group_mean", 1e-4)
    assert ours["surrogate"] is None and ours["length_norm"] is None


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
    ("epochs", "train_batch", "steps", "on_policy"),
    [(1, 256, 1, True), (1, 128, 2, False), (2, 256, 2, False), (2, 128, 4, False),
     (4, 256, 4, False), (4, 64, 16, False), (1, 512, 1, True)],
)  # fmt: skip
def test_optimizer_steps_per_rollout(epochs, train_batch, steps, on_policy):
    got = config(
        generation_batch_size=256,
        num_iterations=epochs,
        optimizer_batch_size=train_batch,
        per_device_train_batch_size=16,
        grpo_steps=10,
    )
    assert got.gradient_accumulation_steps == train_batch // 16
    assert got.optimizer_steps_per_rollout == steps
    assert got.on_policy is on_policy


def test_deterministic_turns_on_trls_setting():
    assert config(deterministic=True).full_determinism


def test_max_steps_wins_over_grpo_steps():
    assert config(max_steps=3, grpo_steps=50).max_steps == 3


def test_accumulation_counts_processes(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ConfigurationError, match="not a multiple of the 32 completions"):
        config(optimizer_batch_size=48, per_device_train_batch_size=8)


NORMALIZED = {"multi_objective_aggregation": "normalize_then_sum"}
PARTS = {"steps_per_generation": 2, "grpo_steps": 3}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"baseline": "mean"}, "baseline is 'mean'; allowed: group_mean, none"),
        ({"scale_rewards": "std"}, "allowed: group, batch, none"),
        ({"surrogate": "ppo"}, "allowed: clip, no_clip, reinforce, geometric, probability, one_si"),
        ({"baseline": "leave_one_out", "num_generations": 1}, "num_generations is 1"),
        ({"baseline": "best_of_others", "num_generations": 1}, "num_generations is 1"),
        ({"baseline": "best_of_others", "best_of": 9}, "best_of is 9, but a group has 8"),
        ({"kl_in": "reward", "hard_group_exponent": 1.0, **NORMALIZED},
         "hard_group_exponent 1.0 and kl_in reward acts on the sum of the rewards"),
        ({"baseline": "none", **NORMALIZED}, "use 'sum_then_normalize'"),
        ({"advantage_eps": -1e-6}, "it has to be 0 or more"),
        ({"placebo": "sugar"}, "placebo is 'sugar'; allowed: random, length, constant, None"),
        ({"reward_noise": 1.5}, "reward_noise is 1.5; it has to be at least 0 and at most 1"),
        ({"length_norm_constant": 0.0, "length_norm": "constant"}, "has to be more than 0"),
        ({"surrogate": "no_clip", "delta": 2.0}, "delta 2.0 does"),
        ({"surrogate": "probability", "delta": 2.0}, "surrogate 'probability' does not limit"),
        ({"sampler_dtype": "int8", "repetition_penalty": 1.1},
         "repetition_penalty 1.1 changes the sampling distribution"),
        ({"rollout_staleness": 1, "generation_kwargs": {"top_p": 0.9}},
         "top_p in generation_kwargs changes the sampling distribution"),
        ({"num_iterations": 0}, "num_iterations is 0; it has to be 1 or more"),
        ({"min_tokens": 99, "max_completion_length": 12}, "min_tokens 99 is more than"),
        ({"stop": "</answer>"}, "stop is '</answer>'; give a list of texts such as ['</answer>']"),
        ({"stop": ["a", ""]}, "stop is ['a', '']; give a list of texts"),
        ({"optimizer_batch_size": 100}, "optimizer_batch_size 100 is not a multiple"),
        ({"generation_kwargs": {"seed": 1}}, "remove it and use --seed"),
        ({"generation_kwargs": {"num_return_sequences": 2}}, "has num_return_sequences 2, but"),
        ({"loss_type": "sapo", "surrogate": "clip"}, "has its own objective"),
        ({"positive_weight": 0, "negative_weight": 0}, "so no completion has a gradient"),
        ({"eval_by": "level"}, "eval_by 'level' needs evaluation 'one_shot'"),
        ({"eval_temperature": 0.0}, "is greedy, so the 8 samples of a prompt"),
        ({"eval_temperature": -1.0}, "eval_temperature is -1.0; it has to be 0 or more"),
        ({"eval_top_p": 0.0}, "it has to be more than 0 and at most 1"),
        ({**PARTS, "gradient_accumulation_steps": 3},
         "needs whole optimizer steps, but 2 microbatches"),
        ({**PARTS, "gradient_accumulation_steps": 4},
         "grpo_steps 3 does not fill its last optimizer step, which takes 2 rollout"),
        ({"min_tokens": 2, "use_transformers_continuous_batching": True},
         "set min_tokens to 0, or use_transformers_continuous_batching"),
        ({"deterministic": True, "use_vllm": True, "vllm_mode": "server"},
         "deterministic does not reach a vLLM server"),
        ({"use_vllm": True, "max_completion_length": 512, "vllm_max_model_length": 512},
         "max_completion_length 512 leaves no tokens for a prompt in vllm_max_model_length 512"),
    ],
)  # fmt: skip
def test_contradictions_name_the_value_and_the_change(settings, said):
    with pytest.raises(ConfigurationError) as caught:
        config(**settings)
    assert said in str(caught.value)


def test_booleans_for_scale_rewards_mean_what_they_mean_in_trl():
    assert config(scale_rewards=True).scale_rewards == "group"
    assert config(scale_rewards=False).scale_rewards == "none"


def test_choices_of_types():
    assert choices(LengthNorm) == ("mean", "constant", "microbatch", "token", "nonzero", "prompt")
    assert choices(Scale | None)[2:] == ("none", "group_mean", "advantage_std", "token_std", None)
    assert choices(list[str] | None) == choices(float) == choices(None) == ()


def test_a_learning_rate_scale_of_zero_is_refused():
    with pytest.raises(ConfigurationError, match="has to be more than 0"):
        TaskArguments(learning_rate_scale=0.0)


@pytest.mark.parametrize(
    ("rollout", "step", "together"),
    [(4, 4, 4), (4, 2, 2), (2, 6, 2), (1, 3, 1), (4, 6, 1), (6, 4, 1), (3, 2, 1)],
)
def test_rows_are_dealt_by_length_only_where_every_step_sums_the_whole_group(
    rollout, step, together
):
    batches = {"steps_per_generation": rollout, "gradient_accumulation_steps": step}
    assert config(**batches).regrouped_together == together
    assert config(**batches, regroup_by_length=False).regrouped_together == 1
    assert config(**batches, length_norm="microbatch").regrouped_together == 1


@pytest.mark.parametrize(
    ("rollout", "step", "max_steps"), [(4, 4, 12), (4, 2, 24), (2, 4, 6), (2, 6, 4)]
)
def test_grpo_steps_count_rollout_batches(rollout, step, max_steps):
    counted = config(steps_per_generation=rollout, gradient_accumulation_steps=step, grpo_steps=12)
    assert counted.max_steps == max_steps
    assert max_steps * counted.grpo_steps_per_optimizer_step == 12
