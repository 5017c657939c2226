"""Training of the miniature's models: a plain loop over the corpus.

Muon trains the matrices and AdamW the other weights; AdamW alone would need three times as many
texts. Weights, texts and their order follow from a seed, and the number of threads is fixed. So
two builds on one machine are bit-equal; builds on different machines differ by rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from trl_ablate.miniature.corpus import Text, corpus, prompt, right_solutions, right_texts
from trl_ablate.miniature.world import Lesson, Shape, Stage, World

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

THREADS = 1
IGNORED = -100
Encoded = tuple[list[int], list[int]]
"""Token ids of a text, and its labels."""


def taught(
    world: World,
    stage: Stage,
    tokenizer: PreTrainedTokenizerFast,
    start: Path | None,
    on_step: Callable[[float], None],
) -> Qwen2ForCausalLM:
    """A new model taught the world's lessons, or the model at `start` taught right solutions."""
    from transformers import Qwen2ForCausalLM

    lesson, texts = world.lessons()[stage], 10 * world.seed
    if start is not None:
        model = Qwen2ForCausalLM.from_pretrained(start)
        teach(model, tokenizer, right_solutions(world, seed=texts), lesson, on_step)
        return model
    model = new_model(tokenizer, world.shape, world.seed)
    if world.first_lesson is not None:
        teach(model, tokenizer, right_texts(world, seed=texts + 2), world.first_lesson, on_step)
    teach(model, tokenizer, corpus(world, seed=texts), lesson, on_step)
    return model


def new_model(tokenizer: PreTrainedTokenizerFast, shape: Shape, seed: int = 0) -> Qwen2ForCausalLM:
    """An untrained Qwen2 of this shape; the seed determines its weights."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    ids = tokenizer.get_vocab()
    config = Qwen2Config(
        vocab_size=len(ids),
        hidden_size=shape.width,
        intermediate_size=shape.inner_width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=shape.context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=ids[str(tokenizer.eos_token)],
        pad_token_id=ids[str(tokenizer.pad_token)],
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config)


def teach(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    texts: Iterator[Text],
    lesson: Lesson,
    on_step: Callable[[float], None] = lambda loss: None,
) -> None:
    """Train the model in place on the completions of `texts`."""
    import torch

    optimizers = _optimizers(model, lesson)
    model.train()
    with _fixed_threads():
        for step in range(lesson.steps):
            batch = list(islice(texts, lesson.texts_per_step))
            loss = _backward(model, _encode(tokenizer, batch), lesson.groups)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer, rate in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = rate * lesson.rate_factor(step)
                optimizer.step()
                optimizer.zero_grad()
            on_step(loss)
    model.eval()


def _optimizers(
    model: Qwen2ForCausalLM, lesson: Lesson
) -> list[tuple[torch.optim.Optimizer, float]]:
    import torch

    embedding = model.get_input_embeddings().weight
    matrices = [p for p in model.parameters() if p.ndim == 2 and p is not embedding]
    others = [p for p in model.parameters() if p.ndim != 2 or p is embedding]
    muon = torch.optim.Muon(matrices, lr=lesson.matrix_rate, weight_decay=0.0)
    adam = torch.optim.AdamW(others, lr=lesson.other_rate, betas=(0.9, 0.95), weight_decay=0.0)
    return [(muon, lesson.matrix_rate), (adam, lesson.other_rate)]


def _backward(model: Qwen2ForCausalLM, texts: list[Encoded], groups: int) -> float:
    """Add the gradient of the mean loss of the completions' tokens; return this loss. Texts of
    similar length go through the model together, in so many groups."""
    if groups > 1:
        texts = sorted(texts, key=lambda text: len(text[0]))
    size = -(-len(texts) // groups)
    parts = [texts[first : first + size] for first in range(0, len(texts), size)]
    counts = [sum(label != IGNORED for _, labels in part for label in labels) for part in parts]
    total = 0.0
    for part, count in zip(parts, counts, strict=True):
        loss = _completion_loss(model, *_padded(part)) * (count / sum(counts))
        loss.backward()
        total += loss.item()
    return total


def _encode(tokenizer: PreTrainedTokenizerFast, batch: list[Text]) -> list[Encoded]:
    prompts = tokenizer([prompt(text, tokenizer) for text in batch]).input_ids
    completions = tokenizer([f"{text.completion}{tokenizer.eos_token}" for text in batch]).input_ids
    return [
        (asked + answered, [IGNORED] * len(asked) + answered)
        for asked, answered in zip(prompts, completions, strict=True)
    ]


def _padded(texts: list[Encoded]) -> tuple[torch.Tensor, torch.Tensor]:
    import torch
    from torch.nn.utils.rnn import pad_sequence

    return (
        pad_sequence([torch.tensor(ids) for ids, _ in texts], batch_first=True),
        pad_sequence(
            [torch.tensor(labels) for _, labels in texts], batch_first=True, padding_value=IGNORED
        ),
    )


def _completion_loss(
    model: Qwen2ForCausalLM, ids: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """Mean cross-entropy of the completions' tokens; the output layer computes only these."""
    import torch

    hidden = model.model(input_ids=ids).last_hidden_state[:, :-1]
    targets = labels[:, 1:]
    counted = targets != IGNORED
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[counted]), targets[counted])


@contextmanager
def _fixed_threads() -> Iterator[None]:
    """Use one thread, whatever the launcher set: the bits depend on the number of threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        yield
    finally:
        torch.set_num_threads(before)
