"""Tools, environments and images, with ours and with stock: in training, and in an evaluation
before it.

The model has random weights and would call no tool, so a script replaces its generation.
"""

import random

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
    ROWS,
    evaluate_alike,
    refused_alike,
    tokenizer_of,
    train_alike,
    train_both_ways,
)
from tests.support.tiny_models import tiny_config
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
    """`calling(name)`: most generated turns call this tool, the others are text."""

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
    """A reward that grows with the length of the messages in a completion."""
    return [len(messages) + len(messages[-1]["content"]) / 10 for messages in completions]


@pytest.fixture
def chat(both):
    """`both`, with questions as messages."""
    data = {"train_dataset": QUESTIONS, "eval_dataset": QUESTIONS.select(range(5))}
    tokenizer = {"tokenizer": lambda model: tokenizer_of(model, qwen3_chat_template)}
    return lambda **given: both(**{**data, **tokenizer, "reward_funcs": said, **given})


def test_tools(chat, calling):
    calling("double")
    pair = chat(tools=[double])
    found = evaluate_alike(pair, **LONG)
    assert found["eval_tools/call_frequency"] > 0.5
    assert 0 < found["eval_tools/failure_frequency"] < 1
    train_alike(pair, **LONG)


class Counter:
    """Starts at its row's target, adds numbers, and rewards the sum."""

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


NAMED = Dataset.from_list([{"environment": "counter", "target": i} for i in range(16)])
ENVIRONMENTS = {
    "of rows": {"environment_factory": Counter},
    "of rows without a prompt": {  # the data only name them, and they provide the prompts
        "environment_factory": {"counter": Counter},
        "train_dataset": NAMED,
        "eval_dataset": NAMED.select(range(5)),
    },
    "with all the data": {
        "environment_factory": Counter,
        "train_dataset": None,
        "eval_dataset": None,
    },
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_environments(chat, calling, name):
    """Every completion is graded by an environment that was reset for its own row."""
    calling("add")
    pair = chat(reward_funcs=None, **ENVIRONMENTS[name])
    train_alike(pair, **LONG)
    if name == "of rows":
        found = evaluate_alike(pair, **LONG)
        assert found["eval_rewards/Counter/mean"] == found["eval_reward"] > 2
        assert found["eval_tools/call_frequency"] > 0.5
    if name == "with all the data":
        refused_alike(pair, "max_steps", **{**LONG, "max_steps": -1})


def test_evaluation_has_environments_of_its_own(chat, calling):
    calling("add")
    trainer = chat(environment_factory=Counter, reward_funcs=None).one_shot(**LONG)
    trainer.train()
    held, pool = trainer.environments, list(trainer._environment_pool[None])
    before, resets = Counter.made, [one.resets for one in pool]
    trainer.evaluate()
    assert Counter.made == before + 10
    trainer.evaluate()
    assert Counter.made == before + 10
    assert trainer.environments is held and trainer._environment_pool == {None: pool}
    assert [one.resets for one in pool] == resets


# Images


@pytest.fixture(scope="module")
def seeing(tmp_path_factory):
    """Folder of a Llava: CLIP with 2 layers for 16 x 16 pixels, and a Qwen2 with 2 layers."""
    folder = str(tmp_path_factory.mktemp("seeing"))
    tokenizer = miniature.tokenizer("sums")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    image_token = tokenizer.convert_tokens_to_ids("<image>")
    torch.manual_seed(0)
    vision = CLIPVisionConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=16,
        patch_size=8,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=tiny_config(tokenizer),
        image_token_index=image_token,
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


PICTURED = (
    "{% for message in messages %}<|{{ message['role'] }}|>"
    "{% for part in message['content'] %}"
    "{{ '<image>' if part['type'] == 'image' else part['text'] }}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def pictured(count: int, *, painted: bool = True) -> Dataset:
    """Questions about one-coloured images, all black unless `painted`."""
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


def looking(seeing):
    return {
        "model": seeing,
        "tokenizer": lambda model: AutoProcessor.from_pretrained(model, padding_side="left"),
        "reward_funcs": written,
        "train_dataset": pictured(8),
        "eval_dataset": None,
    }


@pytest.mark.slow
def test_images(both, seeing):
    """The model also gets them in evaluation: with black images it writes other text."""
    arguments = {**looking(seeing), "eval_dataset": pictured(5)}
    greedy = {"generation_kwargs": {"do_sample": False}}
    found = evaluate_alike(both(**arguments), **greedy)
    trainer = both(**arguments).ours(**greedy)
    black = trainer.evaluate(pictured(5, painted=False))
    assert black["eval_reward"] != pytest.approx(found["eval_reward"], abs=1e-3)
    off_policy = {"steps_per_generation": 4, "pad_to_multiple_of": 7, "log_completions": True}
    ours, stock = train_both_ways(both(**looking(seeing)), beta=0.1, **off_policy)
    assert len(ours._logs["images"]) == len(stock._logs["images"])
