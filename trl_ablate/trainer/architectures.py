"""Which models may have their rows moved to the left: those whose positions are relative.

A row that is moved loses the padding before its prompt. A model with rotary positions, or one that
counts positions by the attention mask, gives every token the same log-probability as before; one
that counts columns, such as GPT-2, does not. Every architecture here was measured
(`tests/contract/test_architectures.py`); any other is left padded as TRL pads it. So is a model
whose adapter puts learned tokens before the row: there the padding is part of a distance.
"""

import logging
from typing import Any

from accelerate.utils import is_peft_model

logger = logging.getLogger(__name__)

MEASURED = """
afmoe apertus arcee aria_text bamba bitnet bloom codegen cohere cohere2 cwm deepseek_v2
deepseek_v3 diffllama ernie4_5 ernie4_5_moe exaone4 exaone_moe falcon falcon_h1 falcon_mamba
flex_olmo fuyu gemma gemma2 gemma3_text gemma4_text glm glm4 glm4_moe glm4_moe_lite gpt_neox
gpt_neox_japanese gpt_oss gptj granite granitemoe granitemoehybrid granitemoeshared helium
hrm_text hunyuan_v1_dense hunyuan_v1_moe hy_v3 hy_v4 hyperclovax jais2 jamba jetmoe lfm2
lfm2_moe llama llama4_text mamba mellum minicpm3 minimax minimax_m2 minimax_m3_vl_text ministral
ministral3 mistral mixtral modernbert-decoder mpt nanochat nemotron olmo olmo2 olmo3 olmo_hybrid
olmoe opt persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_5_moe_text qwen3_5_text
qwen3_moe qwen3_next seed_oss smollm3 solar_open stablelm starcoder2 vaultgemma
"""

RELATIVE = frozenset(MEASURED.split())
"""Values of `model_type` in a model's configuration."""


def may_move_rows(model_type: str, *, aux_loss: bool, virtual_tokens: bool) -> bool:
    """Whether it changes nothing; where it may, a warning says that the padding stays."""
    if virtual_tokens:
        reason = "the adapter's virtual tokens stand before the padding, at a distance it decides"
    elif aux_loss:
        reason = "the loss that balances its experts is taken over a microbatch"
    elif model_type not in RELATIVE:
        reason = "it was not tested with rows moved to the left"
    else:
        return True
    logger.warning("microbatches of model type '%s' stay as TRL pads them: %s", model_type, reason)
    return False


def has_virtual_tokens(model: Any) -> bool:
    """Whether an adapter puts learned tokens before the row, as prompt and prefix tuning do."""
    return bool(is_peft_model(model) and model.active_peft_config.is_prompt_learning)
