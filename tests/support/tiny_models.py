"""A Qwen2 of one layer with random weights, as small as the test at hand allows."""

from pathlib import Path
from typing import Any

SMALLEST = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def tiny_config(tokenizer: Any, **changes: Any) -> Any:
    """A `Qwen2Config` for the tokenizer."""
    from transformers import Qwen2Config

    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    return Qwen2Config(vocab_size=len(tokenizer), **{**SMALLEST, **ids, **changes})


def save_tiny_qwen2(folder: Path, **changes: Any) -> str:
    """Make one with the tokenizer of sums and tied embeddings; the same weights each time."""
    import torch
    from transformers import Qwen2ForCausalLM

    from trl_ablate import miniature

    tokenizer = miniature.tokenizer("sums")
    torch.manual_seed(0)
    config = tiny_config(tokenizer, **{"tie_word_embeddings": True, **changes})
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
