"""Memory and time on paper: against published sizes and times, our own runs, and by hand."""

import json
import re
from dataclasses import replace

import pytest

from trl_ablate import miniature
from trl_ablate.bench import synthetic
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
    ("changes", "minutes"), [({"gpu": "rtx4090", **SAVING}, 28), (SAVING, 18), ({}, 10)]
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


def test_our_own_runs():
    """Training phases in the table of LAB.md; the last one is of completions of one length."""
    alike = {"max_length": 343, "spread": 0.0, "padding_left": 0.0}
    for changes, seconds in (({}, 1.79), ({"padded": True}, 6.00), (alike, 1.69)):
        found = sum(plan(replace(OURS, **changes)).seconds["training"].values())
        assert found == pytest.approx(seconds, rel=OWN_ERROR)


def test_published_sizes_and_that_of_the_bench():
    billions = {
        "0.5B": 0.494, "1B": 1.485, "1.5B": 1.544, "3B": 3.086, "7B": 7.616, "8B": 8.030,
        "14B": 14.77, "32B": 32.76, "72B": 72.71, "135M": 0.1345, "360M": 0.3618,
    }  # fmt: skip
    for name, expected in billions.items():
        assert MODELS[name].parameters / 1e9 == pytest.approx(expected, rel=1e-3), name
    tokenizer, toy = miniature.tokenizer(), MODELS["miniature"]
    model = synthetic.random_model("miniature", tokenizer)
    assert toy.vocabulary == len(tokenizer)
    assert toy.parameters == pytest.approx(model.num_parameters(), rel=5e-3)


def test_the_24_gib_profile_has_the_memory_that_its_header_computes():
    """Rows of 2048 tokens, the longest that the profile allows."""
    header = (SHIPPED / "profiles" / "rtx4090.yaml").read_text(encoding="utf-8")
    training, rollout = map(float, re.findall(r"^# {50,}(\d+\.\d)$", header, re.M)[1:])
    answer = plan(Setup(gpu="rtx4090", **{**SAVING, "engine_share": 0.2}, prompt_tokens=1024))
    assert sum(answer.bytes_training.values()) / GIB == pytest.approx(training, abs=0.5)
    assert sum(answer.bytes_rollout.values()) / GIB == pytest.approx(rollout, abs=0.2)
    assert answer.cache_tokens == pytest.approx(35_000, rel=0.03)


@pytest.mark.parametrize(("rows", "measured"), [(120, 2.74), (240, 4.52), (400, 7.2)])
def test_the_memory_of_an_evaluation_on_a_cpu(rows, measured):
    """GiB of `trl-ablate evaluate` with SmolLM2 and `words`, which has no optimizer."""
    setup = Setup(
        model="135M", gpu="cpu-bf16", engine="transformers", prompt_tokens=54, mean_length=17,
        max_length=48, rollouts=64, eval_batch=rows, context_gib=0.5,
    )  # fmt: skip
    parts = plan(setup).bytes_rollout
    parts.pop("optimizer states")
    assert sum(parts.values()) / GIB == pytest.approx(measured, rel=0.1)
    assert plan(replace(setup, evaluations=0)).bytes_rollout["KV cache"] < parts["KV cache"]


TINY = Shape(
    layers=2, hidden=4, intermediate=8, heads=2, kv_heads=1, vocabulary=10, tied=True, head_size=2
)
CARD = Gpu(memory=1e9, bandwidth=1e6, flops=1e6, link=1e6, source="none")
PLAIN = Setup(mfu=1, bandwidth_use=1, link_use=1, layer_ms=0, decode_ms=0, padding_left=0, spread=0)


def of_tiny(card=CARD, **changes):
    return Estimate(replace(PLAIN, **changes), TINY, card)


def test_a_shape():
    # queries 2·2 = 4 wide, keys 1·2 = 2; a layer: q and o 4·4 each, k and v 4·2 each, MLP 3·4·8
    assert TINY.of_a_layer == 16 + 16 + 8 + 8 + 96
    assert TINY.parameters == 2 * 144 + 40
    assert replace(TINY, tied=False).parameters == 2 * 144 + 80
    assert TINY.kv_bytes == 2 * 2 * 2 * 2  # keys and values, bfloat16, two layers, two wide
    # rank 1: both ends of each of 7 matrices: q, o 4+4; k, v 4+2; gate, up, down 4+8
    assert TINY.adapter(1) == 2 * (8 + 8 + 6 + 6 + 12 + 12 + 12) == 128


COPIES = "bfloat16 copies by autocast"
ZERO3 = {"gpus": 2, "sharding": "zero3"}
ROWS, LAYER = 4 * (150 + 1024), 24 * 4 + 8 * 8 + 4 * (4 + 2)
"""Tokens of a microbatch, and bytes of activations of a token in a layer."""


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"weights": 4 * 328, "optimizer states": 8 * 328, "gradients": 4 * 328,
              COPIES: 2 * 328, "activations": ROWS * 2 * LAYER,
              "logits": 12 * 256 * 10 + 4 * 40, "context": GIB}),
        ({"checkpointing": True}, {"activations": ROWS * (2 * 4 * 4 + LAYER)}),
        ({"optimizer": "adamw_8bit"}, {"optimizer states": 2 * 328 + 6 * 40}),  # not of the head
        ({"fused_head": False}, {"logits": 12 * 4 * 1024 * 10 + 4 * 40}),
        ({"reference": True}, {"reference model": 4 * 328}),
        ({"sleep": False}, {"engine, awake": 0.3e9}),
        ({"gpus": 2}, {"weights": 4 * 328, "gradients": 2 * 4 * 328}),  # DDP copies them
        (ZERO3, {"weights": 2 * 328, "optimizer states": 4 * 328, "gradients": 2 * 328,
                 COPIES: 2 * 2 * 144}),
        ({"weights": "bfloat16", **ZERO3}, {"weights": 328, "gathered layers": 2 * 2 * 144}),
        ({"lora_rank": 1}, {"weights": 4 * (328 + 128), "optimizer states": 8 * 128,
                            "gradients": 4 * 128, COPIES: 2 * 328, "logits": 12 * 256 * 10}),
        ({"lora_rank": 1, "checkpointing": True}, {COPIES: 0}),
        ({"lora_rank": 1, "weights": "bfloat16"}, {"weights": 2 * (328 + 128)}),
        ({"lora_rank": 1, "quantized": "4bit"},
         {"weights": 0.56 * 288 + 4 * 40 + 4 * 128, COPIES: 0}),
    ],
)  # fmt: skip
def test_bytes_of_a_training(changes, expected):
    found = of_tiny(**changes).bytes_training
    assert {part: found[part] for part in expected} == pytest.approx(expected)


def test_without_an_engine_sharded_weights_are_gathered_to_generate():
    found = of_tiny(engine="transformers", **ZERO3).bytes_rollout
    assert (found["weights"], found["gathered weights"]) == (2 * 328, 4 * 328)


def test_a_head_of_its_own_is_not_quantized():
    setup = replace(PLAIN, lora_rank=1, quantized="8bit")
    weights = Estimate(setup, replace(TINY, tied=False), CARD).staying["weights"]
    assert weights == 288 + 4 * 2 * 40 + 4 * 128


def test_operations():
    sizes = {"rollouts": 3, "prompt_tokens": 5, "mean_length": 7, "max_length": 7}
    # 36 positions of 12; matrices 2·288 each, head 2·40 for 21 of them, attention 4·2·4·12² a row
    assert of_tiny(**sizes, padded=True).forward() == 36 * 576 + 21 * 80 + 3 * 32 * 144
    assert of_tiny(**sizes).forward() == 36 * 576 + 21 * 80 + 3 * 32 * 144 / 2
    assert of_tiny(**sizes, sharing=5).forward() == 24 * 576 + 21 * 80 + 3 * 32 * 144 / 2
    passes = [of_tiny(**{name: 1}).passes for name in ("padded", "checkpointing", "lora_rank")]
    assert passes == [3, 4, 2]


def test_training_moves_weights_and_gradients_in_every_microbatch():
    # weights read in 3 passes, 2 bytes each; gradients written, and read, added, written;
    # float32 is cast for each pass that reads it, 6 bytes more
    for weights, moved in (("bfloat16", 3 * 2 + 2 + 3 * 2), ("float32", 3 * 2 + 6 + 2 + 3 * 4)):
        setup = {"rollouts": 8, "microbatch": 4, "weights": weights}
        found = of_tiny(replace(CARD, flops=1e30), **setup).seconds["training"]
        assert found["forward and backward"] == pytest.approx(2 * 328 * moved / 1e6)


def test_communication():
    # gradients in float32, summed: each card sends 2·½ of 4·328 bytes once, at 1e6 bytes a second
    assert of_tiny(gpus=2).communication(10) == pytest.approx(4 * 328 / 1e6)
    # each of 10 microbatches: weights gathered twice in bfloat16, gradients spread, half of each
    assert of_tiny(**ZERO3).communication(10) == pytest.approx(10 * (4 + 4) * 328 / 2e6)
    assert of_tiny().communication(10) == 0


def test_decoding_reads_the_weights_every_step_and_the_cache_of_every_row():
    slow_memory = replace(CARD, memory=1e12, flops=1e15)
    sizes = {"prompt_tokens": 3, "mean_length": 4, "max_length": 4, "engine_share": 1}
    found = of_tiny(slow_memory, **sizes).generated(2)["decoding"]
    # 4 steps of 2·328 bytes; two rows of 4 tokens over 3 prompt tokens and half of 4, 16 bytes each
    assert found == pytest.approx((4 * 2 * 328 + 2 * (4 * 3 + 4**2 / 2) * 16) / 1e6)


def test_a_small_cache_takes_several_waves():
    small = Estimate(Setup(engine_share=0.1), shape_of("1.5B"), GPUS["h100"])
    assert small.waves(1024) == 1024 * 493 / small.cache_tokens > 1
    assert Estimate(Setup(), shape_of("1.5B"), GPUS["h100"]).waves(256) == 1


BASE = Setup(gpus=2, sharding="zero3", epochs=2, extra_forwards=1, engine_share=0.2, gpu="a100")
OTHER = {
    "model": "3B", "gpu": "h200", "gpus": 4, "sharding": "none", "weights": "bfloat16",
    "optimizer": "adamw_bf16", "engine": "transformers", "rollouts": 512, "max_length": 2048,
    "microbatch": 1, "lora_rank": 4, "layer_ms": 20.0, "quantized": "4bit",
}  # fmt: skip
NEEDS = {"quantized": {"lora_rank": 8}, "eval_batch": {"engine": "transformers"}}


@pytest.mark.parametrize("name", OPTIONS)
def test_ignoring_an_option_would_show(name):
    before, base = getattr(BASE, name), replace(BASE, **NEEDS.get(name, {}))
    following = {bool: lambda: not before, int: lambda: before + 1, float: lambda: before * 0.75}
    other = OTHER[name] if name in OTHER else following[type(before)]()
    answers = [plan(setup).to_dict() for setup in (base, replace(base, **{name: other}))]
    one, other = ({**answer, "assumptions": None} for answer in answers)
    assert one != other


def test_an_engine_without_room_is_a_problem():
    engine = plan(Setup(model="32B", gpus=8, sharding="zero3", engine_share=0.5))
    assert "holds its weights and 0 tokens, not one row of 1174" in engine.problems[-1]
    assert engine.to_dict()["seconds_per_step"] is None
    small = plan(Setup(gpu="l4", **{**SAVING, "engine_share": 0.1}))
    assert small.changes == ["--engine_share 0.3"]


def test_an_evaluation_in_batches_takes_as_many_times_its_longest_response():
    """Where a step costs its least, whatever its rows."""
    setup = replace(PLAIN, engine="transformers", layer_ms=20.0, other_s=0, eval_questions=1024)
    times = [plan(replace(setup, eval_batch=rows)).evaluation for rows in (1024, 256)]
    assert times[1] == pytest.approx(4 * times[0], rel=0.1)


def test_what_is_refused():
    for changes, sentence in (
        ({"model": "9B"}, "'9B' is neither a known size .0.5B, 1B, 1.5B"),
        ({"mfu": 1.5}, "mfu is 1.5; give a share above 0 and at most 1"),
        ({"layer_ms": float("nan")}, "layer_ms is nan; give a number of at least 0"),
        ({"padding_left": 1.0}, "padding_left is 1; give a share below 1"),
        ({"max_length": 100}, "max_length 100 is below mean_length 343; raise it, or lower mean"),
        ({"quantized": "4bit"}, "quantized 4bit is of frozen weights"),
        ({"sharding": "zero3"}, "zero3 shards over cards, and there is one"),
        ({"microbatch": 3}, "256 rollouts are no whole number of microbatches of 3 on 1 cards"),
    ):
        with pytest.raises(ConfigurationError, match=sentence):
            plan(replace(Setup(), **changes))


def test_a_config_json_is_read(tmp_path):
    file = tmp_path / "config.json"
    config = {
        "num_hidden_layers": 28, "hidden_size": 1536, "intermediate_size": 8960,
        "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151936,
        "tie_word_embeddings": True,
    }  # fmt: skip
    file.write_text(json.dumps(config))
    assert shape_of(str(tmp_path)) == shape_of(str(file)) == MODELS["1.5B"]
    del config["tie_word_embeddings"]
    for family, tied in (("qwen2", False), ("gemma3_text", True)):  # as transformers has it
        file.write_text(json.dumps({**config, "model_type": family}))
        assert shape_of(str(file)).tied is tied
    for change, sentence in (
        ({"hidden_size": "wide"}, "has no whole number for hidden_size"),
        ({"num_key_value_heads": -2}, "has no whole number for num_key_value_heads"),
        ({"head_dim": "64"}, "has no whole number for head_dim"),
        ({"num_experts": 8}, "is of a mixture of experts"),
        ({"n_routed_experts": 64}, "is of a mixture of experts"),
    ):
        file.write_text(json.dumps({**config, **change}))
        with pytest.raises(ConfigurationError, match=sentence):
            shape_of(str(tmp_path))
