"""Training of the miniature's models: a plain loop over the corpus.

Muon trains the matrices and AdamW the other weights; AdamW alone would need three times as many
texts. Weights, texts and their order follow from a seed, and the number of threads is fixed. So
two builds on one machine are bit-equal; builds on different machines differ by rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from trl_ablate.miniature.corpus import Text, prompt

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

WIDTH, LAYERS, HEADS, INNER_WIDTH, CONTEXT = 128, 2, 2, 256, 512
THREADS = 1
IGNORED = -100


class Lesson(NamedTuple):
    """Number of steps and learning rates; the rates warm up first and fall to zero at the end."""

    steps: int
    texts_per_step: int
    matrix_rate: float
    other_rate: float
    warmup: int = 20
    cooldown_share: float = 0.4

    def rate_factor(self, step: int) -> float:
        rising = (step + 1) / self.warmup if self.warmup else 1.0
        falling = (self.steps - step) / (self.cooldown_share * self.steps or 1.0)
        return min(1.0, rising, falling if self.cooldown_share else 1.0)


def new_model(tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> Qwen2ForCausalLM:
    """An untrained Qwen2 of 0.37 M parameters; the seed determines its weights."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    ids = tokenizer.get_vocab()
    config = Qwen2Config(
        vocab_size=len(ids),
        hidden_size=WIDTH,
        intermediate_size=INNER_WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=CONTEXT,
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
    """Train the model in place on the completions of `texts`; call `on_step(loss)` after every
    step."""
    import torch

    optimizers = _optimizers(model, lesson)
    model.train()
    with _fixed_threads():
        for step in range(lesson.steps):
            batch = list(islice(texts, lesson.texts_per_step))
            loss = _completion_loss(model, *_encode(tokenizer, batch))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer, rate in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = rate * lesson.rate_factor(step)
                optimizer.step()
                optimizer.zero_grad()
            on_step(loss.item())
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


def _encode(
    tokenizer: PreTrainedTokenizerFast, batch: list[Text]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids, padded on the right, and labels that ignore prompts and padding."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    prompts = tokenizer([prompt(text, tokenizer) for text in batch]).input_ids
    completions = tokenizer([f"{text.completion}{tokenizer.eos_token}" for text in batch]).input_ids
    rows, labels = [], []
    for asked, told in zip(prompts, completions, strict=True):
        rows.append(torch.tensor(asked + told))
        labels.append(torch.tensor([IGNORED] * len(asked) + told))
    return (
        pad_sequence(rows, batch_first=True),
        pad_sequence(labels, batch_first=True, padding_value=IGNORED),
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
    """Use one thread, whatever the launcher set: the bits depend on the number of threads. At this
    size a second thread gains little on idle cores and makes busy ones several times slower."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        yield
    finally:
        torch.set_num_threads(before)
