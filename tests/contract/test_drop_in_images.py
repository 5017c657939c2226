"""Images, with ours and with stock: in training, and in an evaluation before it."""

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from PIL import Image
from transformers import (
    AutoProcessor,
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
)

from tests.contract.alike import train_alike, train_both_ways
from tests.contract.test_drop_in_worlds import evaluate_alike
from tests.support.tiny_models import tiny_config
from trl_ablate import miniature


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
        "tokenizer": lambda: AutoProcessor.from_pretrained(seeing, padding_side="left"),
        "reward_funcs": written,
        "train_dataset": pictured(8),
        "eval_dataset": None,
    }


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        ({}, {"beta": 0.1}),
        pytest.param({"peft_config": LoraConfig(target_modules=["q_proj"])}, {}, marks=SLOW),
        pytest.param({}, {"steps_per_generation": 4}, marks=SLOW),
        pytest.param({}, {"pad_to_multiple_of": 7}, marks=SLOW),
        pytest.param({}, {"log_completions": True, "log_multimodal": False}, marks=SLOW),
    ],
    ids=["reference", "adapter", "off-policy", "multiple", "log_multimodal"],
)
def test_images_under_settings(both, seeing, arguments, settings):
    ours, stock = train_both_ways(both(**looking(seeing), **arguments), **settings)
    assert len(ours._logs["images"]) == len(stock._logs["images"])


@SLOW
def test_several_images_and_none_to_a_prompt(both, seeing):
    pictures = [Image.new("RGB", (16, 16), (i * 30, 90, 10)) for i in range(3)]
    prompt = [{"role": "user", "content": "Which colours?"}]
    for counts in ([2] * 8, [1, 2, 3, 1] * 2):
        rows = [{"prompt": prompt, "images": pictures[:count]} for count in counts]
        data = {**looking(seeing), "train_dataset": Dataset.from_list(rows)}
        train_both_ways(both(**data))
    text = Dataset.from_list([{"prompt": prompt}] * 8)
    train_both_ways(both(**{**looking(seeing), "train_dataset": text}))


def test_images(both, seeing):
    """The model also gets them in evaluation: with black images it writes other text."""
    arguments = {**looking(seeing), "eval_dataset": pictured(5)}
    greedy = {"generation_kwargs": {"do_sample": False}}
    found = evaluate_alike(both(**arguments), **greedy)
    trainer = both(**arguments).ours(**greedy)
    black = trainer.evaluate(pictured(5, painted=False))
    assert black["eval_reward"] != pytest.approx(found["eval_reward"], abs=1e-3)
    train_alike(both(**arguments))
