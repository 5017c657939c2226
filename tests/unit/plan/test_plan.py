"""Memory and time on paper: against published sizes and times, our own runs, and by hand."""

import json
import re
from dataclasses import replace

import pytest

from trl_ablate.errors import ConfigurationError
from trl_ablate.plan.estimate import Estimate, plan
from trl_ablate.plan.setup import OPTIONS, Setup
from trl_ablate.plan.sizes import GIB, GPUS, MODELS, Gpu, Shape, shape_of
from trl_ablate.recipe.places import SHIPPED

PUBLISHED_ERROR = 0.25
"""Allowed error of a published run's time. Two constants, `mfu` and `layer_ms`, were chosen with
these three times in view, so this is no prediction."""
OWN_ERROR = 0.30
"""Allowed error of our own runs on a CPU, whose speed was fitted to one of them."""

PUBLISHED = Setup(
    steps=20, evaluations=6, eval_questions=1024, mean_length=330, padded=True, extra_forwards=1
)
"""`reinforce_with_baseline` of the published ablations: 256 rollouts, 272 to 371 tokens long. How
often it was evaluated is not published; every four steps is what our recipes do."""
SAVING = {"microbatch": 1, "checkpointing": True, "optimizer": "adamw_8bit", "engine_share": 0.4}


@pytest.mark.parametrize(
    ("changes", "minutes"),
    [({"gpu": "rtx4090", **SAVING}, 28), (SAVING, 18), ({}, 10)],
    ids=["RTX 4090", "H100 with the settings of the RTX 4090", "H100 with its own"],
)
def test_published_times(changes, minutes):
    answer = plan(replace(PUBLISHED, **changes))
    assert not answer.problems
    assert answer.run / 60 == pytest.approx(minutes, rel=PUBLISHED_ERROR)


OURS = Setup(
    model="miniature", gpu="cpu", engine="transformers", rollouts=64, microbatch=4,
    prompt_tokens=96, mean_length=343, max_length=1024,
)  # fmt: skip
"""`trl-ablate bench train`: stock TRL pads to the longest row, trl_ablate leaves 6 %."""


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({"max_length": 343, "spread": 0.0, "padding_left": 0.0}, 1.69),
        ({}, 1.79),
        ({"padded": True}, 6.00),
        ({"mean_length": 128, "max_length": 384}, 64 * 128 * 87e-6),
        ({"mean_length": 64, "max_length": 192}, 64 * 64 * 131e-6),
        ({"mean_length": 512, "max_length": 1536}, 64 * 512 * 71e-6),
    ],
    ids=["--uniform (fitted)", "train", "stock TRL", "scale, 128", "scale, 64", "scale, 512"],
)
def test_our_own_runs(changes, seconds):
    """Training phases in the table of LAB.md and the lines below it."""
    found = sum(plan(replace(OURS, **changes)).seconds["training"].values())
    assert found == pytest.approx(seconds, rel=OWN_ERROR)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("0.5B", 0.494), ("1.5B", 1.544), ("3B", 3.086), ("7B", 7.616), ("8B", 8.030),
     ("14B", 14.77), ("32B", 32.76), ("72B", 72.71), ("135M", 0.1345), ("360M", 0.3618)],
)  # fmt: skip
def test_published_sizes(name, billions):
    assert MODELS[name].parameters / 1e9 == pytest.approx(billions, rel=1e-3)


def test_the_miniature_is_that_of_the_bench():
    from trl_ablate import miniature
    from trl_ablate.bench import synthetic

    tokenizer = miniature.tokenizer()
    model = synthetic.random_model("miniature", tokenizer)
    assert MODELS["miniature"].vocabulary == len(tokenizer)
    assert MODELS["miniature"].parameters == pytest.approx(model.num_parameters(), rel=5e-3)


def test_the_24_gib_profile_has_the_memory_that_its_header_computes():
    """Rows of 2048 tokens, the longest that the profile allows."""
    header = (SHIPPED / "profiles" / "rtx4090.yaml").read_text(encoding="utf-8")
    training, rollout = (
        float(found) for found in re.findall(r"^# {50,}(\d+\.\d)$", header, re.M)[1:]
    )
    answer = plan(Setup(gpu="rtx4090", **{**SAVING, "engine_share": 0.2}, prompt_tokens=1024))
    assert sum(answer.bytes_training.values()) / GIB == pytest.approx(training, abs=0.5)
    assert sum(answer.bytes_rollout.values()) / GIB == pytest.approx(rollout, abs=0.2)
    assert answer.cache_tokens == pytest.approx(35_000, rel=0.03)


TINY = Shape(
    layers=2, hidden=4, intermediate=8, heads=2, kv_heads=1, vocabulary=10, tied=True, head_size=2
)
CARD = Gpu(memory=1e9, bandwidth=1e6, flops=1e6, link=1e6, source="none")
PLAIN = Setup(mfu=1, bandwidth_use=1, link_use=1, layer_ms=0, decode_ms=0, padding_left=0, spread=0)


def test_a_shape_by_hand():
    # queries 2·2 = 4 wide, keys 1·2 = 2; a layer: q and o 4·4 each, k and v 4·2 each, MLP 3·4·8
    assert TINY.of_a_layer == 16 + 16 + 8 + 8 + 96
    assert TINY.parameters == 2 * 144 + 40
    assert replace(TINY, tied=False).parameters == 2 * 144 + 80
    assert TINY.kv_bytes == 2 * 2 * 2 * 2  # keys and values, bfloat16, two layers, two wide
    # rank 1: both ends of each of 7 matrices: q, o 4+4; k, v 4+2; gate, up, down 4+8
    assert TINY.adapter(1) == 2 * (8 + 8 + 6 + 6 + 12 + 12 + 12)


def of_tiny(setup=PLAIN, card=CARD, **changes):
    return Estimate(replace(setup, **changes), TINY, card)


def test_operations_by_hand():
    sizes = {"rollouts": 3, "prompt_tokens": 5, "mean_length": 7, "max_length": 7}
    # 36 positions of 12; matrices 2·288 each, head 2·40 for 21 of them, attention 4·2·4·12² a row
    assert of_tiny(**sizes, padded=True).forward() == 36 * 576 + 21 * 80 + 3 * 32 * 144
    assert of_tiny(**sizes).forward() == 36 * 576 + 21 * 80 + 3 * 32 * 144 / 2
    assert of_tiny(**sizes, sharing=5).forward() == 24 * 576 + 21 * 80 + 3 * 32 * 144 / 2
    passes = [of_tiny(**{name: 1}).passes for name in ("padded", "checkpointing", "lora_rank")]
    assert passes == [3, 4, 2]


@pytest.mark.parametrize(
    ("weights", "bytes_of_one"),
    [
        # weights read in 3 passes, 2 bytes each; gradients written, and read, added, written
        ("bfloat16", 3 * 2 + 2 + 3 * 2),
        # cast for each pass that reads them, 6 bytes more
        ("float32", 3 * 2 + 6 + 2 + 3 * 4),
    ],
)
def test_training_moves_weights_and_gradients_in_every_microbatch(weights, bytes_of_one):
    fast = replace(CARD, flops=1e30)
    found = of_tiny(card=fast, rollouts=8, microbatch=4, weights=weights).seconds["training"]
    assert found["forward and backward"] == pytest.approx(2 * 328 * bytes_of_one / 1e6)


def test_communication_by_hand():
    # gradients in float32, summed: each card sends 2·½ of 4·328 bytes once, at 1e6 bytes a second
    assert of_tiny(gpus=2).communication(10) == pytest.approx(4 * 328 / 1e6)
    # each of 10 microbatches: weights gathered twice in bfloat16, gradients spread, half of each
    sharded = of_tiny(gpus=2, sharding="zero3")
    assert sharded.communication(10) == pytest.approx(10 * (4 + 4) * 328 / 2e6)
    assert of_tiny().communication(10) == 0


def test_decoding_reads_the_weights_every_step_and_the_cache_of_every_row():
    slow_memory = replace(CARD, memory=1e12, flops=1e15)
    sizes = {"prompt_tokens": 3, "mean_length": 4, "max_length": 4, "engine_share": 1}
    found = of_tiny(card=slow_memory, **sizes).generated(2)["decoding"]
    # 4 steps of 2·328 bytes; two rows of 4 tokens over 3 prompt tokens and half of 4, 16 bytes each
    assert found == pytest.approx((4 * 2 * 328 + 2 * (4 * 3 + 4**2 / 2) * 16) / 1e6)


def test_a_small_cache_takes_several_waves():
    small = Estimate(Setup(engine_share=0.1), shape_of("1.5B"), GPUS["h100"])
    assert small.waves(1024) == 1024 * 493 / small.cache_tokens > 1
    assert Estimate(Setup(), shape_of("1.5B"), GPUS["h100"]).waves(256) == 1


@pytest.mark.parametrize(
    ("name", "value", "saves"),
    [
        ("checkpointing", True, True), ("optimizer", "adamw_8bit", True), ("lora_rank", 8, True),
        ("gpus", 4, True), ("sleep", False, False), ("fused_head", False, False),
        ("sharding", "none", False),
    ],
)  # fmt: skip
def test_savings_save(name, value, saves):
    setup = Setup(gpus=2, sharding="zero3")
    before, after = (plan(each) for each in (setup, replace(setup, **{name: value})))
    assert (sum(after.bytes_training.values()) < sum(before.bytes_training.values())) is saves


QWEN = MODELS["1.5B"]


@pytest.mark.parametrize(
    ("how", "size", "copies"),
    [
        ({}, 4 * QWEN.parameters, 2 * QWEN.parameters),
        ({"checkpointing": True}, 4 * QWEN.parameters, 0),
        ({"weights": "bfloat16"}, 2 * QWEN.parameters, 0),
        ({"quantized": "4bit"},
         0.56 * (QWEN.parameters - QWEN.embedding) + 4 * QWEN.embedding, 0),
    ],
)  # fmt: skip
def test_frozen_weights_have_the_size_in_which_they_are_loaded(how, size, copies):
    found = plan(Setup(lora_rank=8, **how)).bytes_training
    adapters = QWEN.adapter(8) * (2 if "weights" in how else 4)
    assert found["weights"] == pytest.approx(size + adapters)
    assert found.get("bfloat16 copies by autocast", 0) == copies


BASE = Setup(gpus=2, sharding="zero3", epochs=2, extra_forwards=1, engine_share=0.2, gpu="a100")
OTHER = {
    "model": "3B", "gpu": "h200", "gpus": 4, "sharding": "none", "weights": "bfloat16",
    "optimizer": "adamw_bf16", "engine": "transformers", "rollouts": 512, "max_length": 2048,
    "microbatch": 1, "lora_rank": 4, "layer_ms": 20.0, "quantized": "4bit",
}  # fmt: skip


def another(name: str):
    before = getattr(BASE, name)
    if name in OTHER:
        return OTHER[name]
    if isinstance(before, bool):
        return not before
    return before + 1 if isinstance(before, int) else before * 0.75


@pytest.mark.parametrize("name", OPTIONS)
def test_ignoring_an_option_would_show(name):
    base = replace(BASE, lora_rank=8 if name == "quantized" else 0)
    answers = [plan(setup).to_dict() for setup in (base, replace(base, **{name: another(name)}))]
    one, other = ({**answer, "assumptions": None} for answer in answers)
    assert one != other


def test_what_does_not_fit_is_stated_with_what_would_help():
    answer = plan(Setup(model="7B", gpus=8))
    assert [problem.split(" needs ")[0] for problem in answer.problems] == [
        "training", "the rollout",
    ]  # fmt: skip
    assert "--sharding zero3" in answer.changes
    assert not plan(Setup(model="7B", gpus=8, sharding="zero3")).problems
    engine = plan(Setup(model="32B", gpus=8, sharding="zero3", engine_share=0.5))
    assert "holds its weights and 0 tokens, not one row of 1174" in engine.problems[-1]
    assert engine.to_dict()["seconds_per_step"] is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": "9B"}, "'9B' is neither a known size .0.5B, 1.5B"),
        ({"mfu": 1.5}, "mfu is 1.5; give a share above 0 and at most 1"),
        ({"gpus": 0}, "gpus is 0; give a number of at least 1"),
        ({"layer_ms": float("nan")}, "layer_ms is nan; give a number of at least 0"),
        ({"max_length": 100}, "max_length 100 is below mean_length 343; raise it, or lower mean"),
        ({"sharding": "zero3"}, "zero3 shards over cards, and there is one"),
        ({"microbatch": 3}, "256 rollouts are no whole number of microbatches of 3 on 1 cards"),
    ],
)
def test_what_is_refused(changes, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        plan(replace(Setup(), **changes))


CONFIG = {
    "num_hidden_layers": 28, "hidden_size": 1536, "intermediate_size": 8960,
    "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151936,
    "tie_word_embeddings": True,
}  # fmt: skip


def test_a_config_json_is_read(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))
    assert shape_of(str(tmp_path)) == shape_of(str(file)) == MODELS["1.5B"]
    for change, sentence in (
        ({"hidden_size": "wide"}, "has no whole number for hidden_size"),
        ({"num_experts": 8}, "is of a mixture of experts"),
    ):
        file.write_text(json.dumps({**CONFIG, **change}))
        with pytest.raises(ConfigurationError, match=sentence):
            shape_of(str(tmp_path))
