"""A real language model, from a folder without the Hub: loading and training.

`.ci/install-smollm2 FOLDER` writes it; `TRL_ABLATE_SMOLLM2` names the folder.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.warm import warm
from trl_ablate.run.directory import RunDirectory

FOLDER = os.environ.get("TRL_ABLATE_SMOLLM2", "")
if not Path(FOLDER, "config.json").is_file():
    pytest.skip(
        f"TRL_ABLATE_SMOLLM2 is '{FOLDER}', which holds no model: run .ci/install-smollm2 FOLDER",
        allow_module_level=True,
    )
pytestmark = pytest.mark.slow

SMALL = (
    "--profile", "smollm2", "--model_name_or_path", FOLDER, "--report_to", "none",
    "--generation_batch_size", 16, "--optimizer_batch_size", 16, "--max_completion_length", 16,
    "--eval_size", 16, "--grpo_steps", 2, "--eval_steps", 2, "--save_steps", 1,
    "--grader_workers", 1, "--num_generations", 4, "--save_total_limit", 1,
)  # fmt: skip


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
@pytest.mark.parametrize("recipe", ["words", "no_baseline", "lora", "dapo"])
def test_two_steps(recipe, tmp_path):
    run = RunDirectory(tmp_path / "run")
    ended = warm("train", recipe, *SMALL, "--output_dir", run.path).wait()
    assert ended.code == 0, ended.printed
    assert "decoding is slower" not in ended.printed
    found = list(run.metrics())
    assert [row["grpo_step"] for row in found if "eval_reward" in row] == [2]
    assert any("eval_reward/level=1" in row for row in found)
    assert any("style/worked" in row for row in found)
