"""Tools of environments, and images, with ours and with stock: in training, and in an evaluation.

The model has random weights and would call no tool, so a script replaces its generation.
"""

import random
from functools import partial

import pytest
import torch
from datasets import Dataset
from PIL import Image
from transformers import (
    AutoProcessor,
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
)
from trl.chat_template_utils import qwen3_chat_template

from tests.contract.alike import (
    evaluate_alike,
    refused_alike,
    tokenizer_of,
    train_alike,
    train_both_ways,
)
from tests.support.tiny_models import tiny_config
from trl_ablate import AblationTrainer, miniature

QUESTIONS = Dataset.from_list(
    [{"prompt": [{"role": "user", "content": f"{i}?"}], "target": i} for i in range(16)]
)
LONG = {"max_completion_length": 400, "max_tool_calling_iterations": 3}


class Counter:
    """Starts at its row's target, adds numbers, and rewards the sum."""

    made = 0

    def __init__(self):
        type(self).made += 1
        self.total = self.resets = 0

    def reset(self, target=0, **row):
        self.total = target
        self.resets += 1
        return f" Begin with {target}."

    def add(self, number: int) -> int:
        """Adds a number.

        Args:
            number: What is added; a third of them fail.
        """
        if number % 3 == 0:
            raise ValueError("no multiples of 3")
        self.total += number
        return self.total

    def get_reward(self):
        return float(self.total)


def said(completions, **kwargs):
    """A reward that grows with the length of the messages in a completion."""
    return [len(messages) + len(messages[-1]["content"]) / 10 for messages in completions]


@pytest.fixture
def chat(both, monkeypatch):
    """`both`, with questions as messages; most generated turns call `add`, the others are text."""

    def turn(self, prompt_ids, images, multimodal_fields, num_generations, **kwargs):
        asked = [prompt_ids[:place].count(ids) for place, ids in enumerate(prompt_ids)]
        return [*map(partial(tokens, self._tokenizer), prompt_ids, asked)], None

    for trainer in AblationTrainer.__mro__[:2]:
        monkeypatch.setattr(trainer, "_generate_single_turn", turn)
    given = {
        "train_dataset": QUESTIONS,
        "eval_dataset": QUESTIONS.select(range(5)),
        "tokenizer": lambda model: tokenizer_of(model, qwen3_chat_template),
        "environment_factory": Counter,
        "reward_funcs": said,
    }
    return lambda **changes: both(**{**given, **changes})


def tokens(tokenizer, prompt_ids: list[int], asked: int) -> list[int]:
    draw = random.Random(f"{prompt_ids}{asked}")
    call = f'<tool_call>\n{{"name": "add", "arguments": {{"number": {draw.randint(1, 9)}}}}}\n'
    text = f"{call}</tool_call>" if draw.random() < 0.7 else "nothing to call"
    return [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]


def test_environments(chat):
    """Every completion is graded by an environment that was reset for its own row."""
    pair = chat()
    train_alike(pair, **LONG)
    found = evaluate_alike(pair, **LONG)
    assert found["eval_rewards/Counter/mean"] > 2
    assert found["eval_tools/call_frequency"] > 0.5
    assert 0 < found["eval_tools/failure_frequency"] < 1


NAMED = Dataset.from_list([{"environment": "counter", "target": i} for i in range(16)])


def test_environments_that_provide_the_prompts_or_all_the_data(chat):
    named = chat(
        environment_factory={"counter": Counter},
        train_dataset=NAMED,
        eval_dataset=NAMED.select(range(5)),
        reward_funcs=None,
    )
    train_alike(named, **LONG)
    without_data = chat(train_dataset=None, eval_dataset=None, reward_funcs=None)
    train_alike(without_data, **LONG)
    refused_alike(without_data, "max_steps", **{**LONG, "max_steps": -1})


def test_evaluation_has_environments_of_its_own(chat):
    trainer = chat().one_shot(**LONG)
    trainer.train()
    held, pool = trainer.environments, list(trainer._environment_pool[None])
    before, resets = Counter.made, [one.resets for one in pool]
    for _ in range(2):
        trainer.evaluate()
        assert Counter.made == before + 10
    assert trainer.environments is held and trainer._environment_pool == {None: pool}
    assert [one.resets for one in pool] == resets


PICTURED = (
    "{% for message in messages %}<|{{ message['role'] }}|>"
    "{% for part in message['content'] %}"
    "{{ '<image>' if part['type'] == 'image' else part['text'] }}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture
def seeing(tmp_path):
    """Folder of a Llava: CLIP with 2 layers for 16 x 16 pixels, and a Qwen2 with 2 layers."""
    folder = str(tmp_path / "seeing")
    tokenizer = miniature.tokenizer("sums")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    torch.manual_seed(0)
    vision = CLIPVisionConfig(hidden_size=16, intermediate_size=32, num_hidden_layers=2,
                              num_attention_heads=2, image_size=16, patch_size=8)  # fmt: skip
    config = LlavaConfig(
        vision_config=vision,
        text_config=tiny_config(tokenizer),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_seq_length=4,
    )
    model = LlavaForConditionalGeneration(config)
    with torch.no_grad():  # the image must influence the generated text
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


def pictured(colours: list[tuple[int, int, int]]) -> Dataset:
    prompt = [{"role": "user", "content": "Which colour?"}]
    images = [Image.new("RGB", (16, 16), colour) for colour in colours]
    return Dataset.from_list([{"prompt": prompt, "image": image} for image in images])


def written(completions, **kwargs):
    return [sum(map(ord, messages[0]["content"])) % 97 / 97 for messages in completions]


@pytest.mark.slow
def test_images(both, seeing):
    """The model also gets them in evaluation: with black images it writes other text."""
    colours = [(i * 15, i * 40 % 256, 255 - i * 10) for i in range(8)]
    pair = both(
        model=seeing,
        tokenizer=lambda model: AutoProcessor.from_pretrained(model, padding_side="left"),
        reward_funcs=written,
        train_dataset=pictured(colours),
        eval_dataset=pictured(colours[:5]),
    )
    greedy = {"generation_kwargs": {"do_sample": False}}
    found = evaluate_alike(pair, **greedy)
    black = pair.ours(**greedy).evaluate(pictured([(0, 0, 0)] * 5))
    assert black["eval_reward"] != pytest.approx(found["eval_reward"], abs=1e-3)
    off_policy = {"steps_per_generation": 4, "pad_to_multiple_of": 7, "log_completions": True}
    ours, stock = train_both_ways(pair, beta=0.1, **off_policy)
    assert len(ours._logs["images"]) == len(stock._logs["images"])
