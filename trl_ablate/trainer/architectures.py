"""The models whose rows may be moved to the left, packed into one row, or share their prompts.

Moving a row removes the padding before its prompt. If a model uses rotary positions, or counts
positions with the attention mask, each token keeps its log-probability. If it counts columns, as
GPT-2 does, the log-probabilities change. So they do with an adapter that puts learned tokens before
the row, as the padding changes their distance to the prompt; and with rotary frequencies that
follow from the largest position of the forward pass (`longrope`, `dynamic`).

Packed rows stand behind one another: a model with a state that runs along the row (Mamba,
convolutions) would carry it into the next one, and one that attends within chunks (Llama 4) would
count them from the first row.

All architectures listed here were tested (`tests/contract/test_architectures.py`); all others keep
TRL's padding.
"""

import logging
from typing import Any

from accelerate.utils import is_peft_model

from trl_ablate.errors import ConfigurationError

logger = logging.getLogger(__name__)

PACKED = """
apertus arcee aria_text bitnet codegen cohere cohere2 cwm deepseek_v2 deepseek_v3 diffllama
ernie4_5 ernie4_5_moe exaone4 exaone_moe flex_olmo fuyu gemma gemma2 gemma3_text gemma4_text glm
glm4 glm4_moe glm4_moe_lite gpt_neox gpt_neox_japanese gptj granite granitemoe granitemoeshared
helium hrm_text hunyuan_v1_dense hunyuan_v1_moe hy_v3 hy_v4 hyperclovax jais2 jetmoe llama
mellum minicpm3 minimax_m2 minimax_m3_vl_text ministral ministral3 mistral mixtral
modernbert-decoder nanochat nemotron olmo olmo2 olmo3 olmoe persimmon phi phi3 phimoe qwen2
qwen2_moe qwen3 qwen3_moe seed_oss smollm3 solar_open stablelm starcoder2 vaultgemma
"""
MOVED = """
afmoe bamba bloom falcon falcon_h1 falcon_mamba gpt_oss granitemoehybrid jamba lfm2 lfm2_moe
llama4_text mamba minimax mpt olmo_hybrid opt qwen3_5_moe_text qwen3_5_text qwen3_next
"""

PACKABLE = frozenset(PACKED.split())
"""Values of `model_type` in a model's configuration, as in the other lists."""

RELATIVE = PACKABLE | frozenset(MOVED.split())
"""Rows may be moved to the left."""

NOT_SHAREABLE = frozenset(("nemotron", "phimoe", "stablelm"))
"""Of those that may be packed, these do not hand keywords to their attention."""


def may_move_rows(model: Any, *, aux_loss: bool) -> bool:
    """Whether moving rows changes no result. If it may, log a warning that TRL's padding is
    kept."""
    model_type = model.config.model_type
    if is_peft_model(model) and model.active_peft_config.is_prompt_learning:
        reason = "the padding separates the adapter's virtual tokens from the prompt"
    elif frequencies_of_the_pass(model.config):
        reason = "its rotary frequencies follow from the longest row of a forward pass"
    elif aux_loss:
        reason = "the load-balancing loss of its experts depends on the whole microbatch"
    elif model_type not in RELATIVE:
        reason = "this model type was not tested with rows moved to the left"
    else:
        return True
    logger.warning("model type '%s': microbatches keep TRL's padding: %s", model_type, reason)
    return False


def frequencies_of_the_pass(config: Any) -> bool:
    """Whether the rotary frequencies of all rows follow from the largest position among them."""
    found = getattr(config.get_text_config(), "rope_parameters", None) or {}
    of_layers = [one for one in found.values() if isinstance(one, dict)]
    types = [str(one.get("rope_type")) for one in (found, *of_layers)]
    return any(one == "longrope" or "dynamic" in one for one in types)


def check_packs(model_type: str, *, trimmed: bool) -> None:
    """Refuse `padding_free` for a model that would give other log-probabilities, or keeps TRL's
    padding."""
    if not trimmed:
        raise ConfigurationError(
            "padding_free leaves out the padding that this run keeps; set trim_microbatches: true, "
            "or padding_free: false (an auxiliary loss, an unknown model type, prompt tuning "
            "and the rotary types longrope and dynamic keep TRL's padding, too)"
        )
    if model_type not in PACKABLE:
        raise ConfigurationError(
            f"padding_free was not tested with model type '{model_type}', whose rows may see each "
            f"other; set it to false, or use one of {', '.join(sorted(PACKABLE))}"
        )


def may_share(model: Any) -> bool:
    """Whether this model's attention can follow the layout of shared prompts."""
    config = model.config.get_text_config()
    return config._attn_implementation == "sdpa" and config.model_type in PACKABLE - NOT_SHAREABLE
