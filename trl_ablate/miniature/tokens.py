"""The tokenizer of a world: Qwen2's own class with a vocabulary of about 300.

Every digit is one token, as in Qwen2. The words of the corpus are merged from their bytes, so any
other text can be encoded too. Each tag is one token, including the space before it, which makes
answers a third shorter. Tags are added tokens but not special tokens: `skip_special_tokens=True`
keeps them, so rewards and stop strings see them.

It must be Qwen2's class, as `AutoTokenizer` accepts no other one for a Qwen2 model.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from trl_ablate.miniature.corpus import tokenizer_texts
from trl_ablate.miniature.registry import DEFAULT, world_named
from trl_ablate.miniature.world import World

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

VOCABULARY_LIMIT = 448
PAD, END = "<|pad|>", "<|end|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
TAGS = tuple(
    f"{space}<{slash}{name}>"
    for name in ("think", "answer", "reasoning")
    for slash in ("", "/")
    for space in ("", " ")
)

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tokenizer(world: str = DEFAULT) -> PreTrainedTokenizerFast:
    """The tokenizer of the world of this name."""
    return tokenizer_of(world_named(world))


def tokenizer_of(world: World) -> PreTrainedTokenizerFast:
    """Train the tokenizer. This takes a fraction of a second; the result is always the same."""
    from transformers import AddedToken, Qwen2Tokenizer

    result = Qwen2Tokenizer(
        **_vocabulary_and_merges(world),
        unk_token=END,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=list(ROLES),
        padding_side="left",
        model_max_length=512,
        chat_template=CHAT_TEMPLATE,
    )
    result.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    return result


def _vocabulary_and_merges(world: World) -> dict[str, Any]:
    """Byte-level BPE over the corpus's texts between the tags."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import Qwen2Tokenizer

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = Qwen2Tokenizer().backend_tokenizer.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_LIMIT - len(TAGS),
        special_tokens=[PAD, END, *ROLES],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    between_tags = re.compile(r"\s?</?\w+>")
    pieces = (piece for text in tokenizer_texts(world) for piece in between_tags.split(text))
    core.train_from_iterator(pieces, trainer)
    model = json.loads(core.to_str())["model"]
    return {"vocab": model["vocab"], "merges": [tuple(pair) for pair in model["merges"]]}
