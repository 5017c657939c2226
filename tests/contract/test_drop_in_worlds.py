"""Tools, environments and images in place of stock's: in training, and in evaluation before it.

The model has random weights and calls no tool, so that a script stands in for what it generates.
"""

import random

import pytest
import torch
from datasets import Dataset
from PIL import Image
from transformers import (
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    Qwen2Config,
)
from trl.chat_template_utils import qwen3_chat_template

from tests.contract.alike import ROWS, check_alike, tokenizer_of, train_alike
from trl_ablate import AblationTrainer, miniature

QUESTIONS = Dataset.from_list(
    [
        {"prompt": [{"role": "user", "content": row["prompt"]}], "target": i}
        for i, row in enumerate(ROWS)
    ]
)
LONG = {"max_completion_length": 400, "max_tool_calling_iterations": 3}


@pytest.fixture
def calling(monkeypatch):
    """`calling(name)`: most of the generated turns are calls of this tool, the others text."""

    def script(name: str) -> None:
        def turn(self, prompt_ids, images, multimodal_fields, num_generations, **kwargs):
            return [_ids(self._tokenizer, name, ids, i) for i, ids in enumerate(prompt_ids)], None

        for trainer in AblationTrainer.__mro__[:2]:
            monkeypatch.setattr(trainer, "_generate_single_turn", turn)

    return script


def _ids(tokenizer, name: str, prompt_ids: list[int], place: int) -> list[int]:
    draw = random.Random(f"{prompt_ids}{place % 2}")
    call = f'<tool_call>\n{{"name": "{name}", "arguments": {{"number": {draw.randint(1, 9)}}}}}\n'
    text = f"{call}</tool_call>" if draw.random() < 0.7 else "nothing to call"
    return [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]


def double(number: int) -> int:
    """Doubles a number.

    Args:
        number: What is doubled; 3 or less fails.
    """
    if number <= 3:
        raise ValueError("too little")
    return number * 2


def said(completions, **kwargs):
    """A reward of how much there is in the messages of a completion."""
    return [len(messages) + len(messages[-1]["content"]) / 10 for messages in completions]


def chat(both, tiny_model, **arguments):
    data = {"train_dataset": QUESTIONS, "eval_dataset": QUESTIONS.select(range(5))}
    tokenizer = {"tokenizer": lambda: tokenizer_of(tiny_model, qwen3_chat_template)}
    return both(**{**data, **tokenizer, "reward_funcs": said, **arguments})


def evaluate_alike(pair, **settings) -> dict[str, float]:
    """Before any training: the names and numbers of stock, of one batch and of several."""
    theirs = pair.stock(**settings).evaluate()
    mine = pair.ours(**settings).evaluate()
    without = {name: value for name, value in theirs.items() if name in mine}
    assert {name.split("/")[0] for name in set(theirs) - set(mine)} <= {
        "eval_loss",
        "eval_entropy",
        "eval_clip_ratio",
        "eval_model_preparation_time",
    }
    check_alike(mine, without)
    parts = pair.ours(**settings, per_device_eval_batch_size=4).evaluate()
    check_alike(
        parts, {name: value for name, value in without.items() if name != "eval_num_tokens"}
    )
    return mine


def test_tools(both, tiny_model, calling):
    calling("double")
    pair = chat(both, tiny_model, tools=[double])
    found = evaluate_alike(pair, **LONG)
    assert found["eval_tools/call_frequency"] > 0.5
    assert 0 < found["eval_tools/failure_frequency"] < 1
    train_alike(pair, **LONG)


class Counter:
    """Adds numbers up from its row's target, and rewards the sum."""

    made = 0

    def __init__(self):
        type(self).made += 1
        self.own = random.Random(0)
        self.total = self.resets = 0

    def reset(self, target=0, **row):
        self.total = target
        self.resets += 1
        return f" Begin with {target}."

    def add(self, number: int) -> int:
        """Adds a number.

        Args:
            number: What is added.
        """
        self.total += number
        return self.total

    def get_reward(self):
        return float(self.total)


def test_environments(both, tiny_model, calling):
    """Every completion is graded by an environment that was reset for its own row."""
    calling("add")
    pair = chat(both, tiny_model, environment_factory=Counter, reward_funcs=None)
    found = evaluate_alike(pair, **LONG)
    assert found["eval_rewards/Counter/mean"] == found["eval_reward"] > 2
    assert found["eval_tools/call_frequency"] > 0.5
    train_alike(pair, **LONG)


def test_evaluation_has_environments_of_its_own(both, tiny_model, calling):
    calling("add")
    trainer = chat(both, tiny_model, environment_factory=Counter, reward_funcs=None).ours(**LONG)
    trainer.train()
    held, pool = trainer.environments, list(trainer._environment_pool[None])
    before, resets = Counter.made, [one.resets for one in pool]
    trainer.evaluate()
    assert Counter.made == before + 10
    trainer.evaluate()
    assert Counter.made == before + 10
    assert trainer.environments is held and trainer._environment_pool == {None: pool}
    assert [one.resets for one in pool] == resets


def test_rows_without_a_prompt(both, tiny_model, calling):
    """Which environments there are is all that the data says; they bring the prompts."""
    calling("add")
    rows = Dataset.from_list([{"environment": "counter", "target": i} for i in range(16)])
    pair = chat(
        both,
        tiny_model,
        environment_factory={"counter": Counter},
        reward_funcs=None,
        train_dataset=rows,
        eval_dataset=rows.select(range(5)),
    )
    evaluate_alike(pair, **LONG)
    train_alike(pair, **LONG)


@pytest.fixture(scope="module")
def seeing(tmp_path_factory):
    """Folder of a Llava: CLIP of 2 layers for 16 x 16 pixels before a Qwen2 of 2 layers."""
    folder = str(tmp_path_factory.mktemp("seeing"))
    tokenizer = miniature.tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    image_token = tokenizer.convert_tokens_to_ids("<image>")
    torch.manual_seed(0)
    text = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    vision = CLIPVisionConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=16,
        patch_size=8,
    )
    config = LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=image_token, image_seq_length=4
    )
    model = LlavaForConditionalGeneration(config)
    with torch.no_grad():  # what is seen has to be felt in what is written
        for parameter in model.model.multi_modal_projector.parameters():
            parameter.mul_(40)
    model.save_pretrained(folder)
    size = {"height": 16, "width": 16}
    LlavaProcessor(
        CLIPImageProcessor(size=size, crop_size=size),
        tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        image_token="<image>",
        num_additional_image_tokens=1,
        chat_template=PICTURED,
    ).save_pretrained(folder)
    return folder


PICTURED = (
    "{% for message in messages %}<|{{ message['role'] }}|>"
    "{% for part in message['content'] %}"
    "{{ '<image>' if part['type'] == 'image' else part['text'] }}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def pictured(count: int, *, painted: bool = True) -> Dataset:
    """Questions about one-coloured pictures, all black unless they are painted."""
    colours = [
        (i * 15 % 256, i * 40 % 256, 255 - i * 10) if painted else (0, 0, 0) for i in range(count)
    ]
    return Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": "Which colour?"}],
                "image": Image.new("RGB", (16, 16), colour),
            }
            for colour in colours
        ]
    )


def written(completions, **kwargs):
    return [sum(map(ord, messages[0]["content"])) % 97 / 97 for messages in completions]


def test_images(both, seeing):
    """They are shown to the model at evaluation, too: black ones make it write something else."""
    from transformers import AutoProcessor

    arguments = {
        "model": seeing,
        "tokenizer": lambda: AutoProcessor.from_pretrained(seeing, padding_side="left"),
        "reward_funcs": written,
        "train_dataset": pictured(8),
        "eval_dataset": pictured(5),
    }
    greedy = {"generation_kwargs": {"do_sample": False}}
    found = evaluate_alike(both(**arguments), **greedy)
    trainer = both(**arguments).ours(**greedy)
    black = trainer.evaluate(pictured(5, painted=False))
    assert black["eval_reward"] != pytest.approx(found["eval_reward"], abs=1e-3)
    train_alike(both(**arguments))
