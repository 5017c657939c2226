"""The models whose rows may be moved to the left: those with relative positions.

Moving a row removes the padding before its prompt. If a model uses rotary positions, or counts
positions with the attention mask, each token keeps its log-probability. If it counts columns, as
GPT-2 does, the log-probabilities change. All architectures listed here were tested
(`tests/contract/test_architectures.py`); all others keep TRL's padding. So do models with an
adapter that puts learned tokens before the row, as the padding changes their distance to the
prompt.
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
    """Whether moving rows changes no result. If it may, log a warning that TRL's padding is
    kept."""
    if virtual_tokens:
        reason = "the padding separates the adapter's virtual tokens from the prompt"
    elif aux_loss:
        reason = "the load-balancing loss of its experts depends on the whole microbatch"
    elif model_type not in RELATIVE:
        reason = "this model type was not tested with rows moved to the left"
    else:
        return True
    logger.warning("model type '%s': microbatches keep TRL's padding: %s", model_type, reason)
    return False


def has_virtual_tokens(model: Any) -> bool:
    """Whether an adapter puts learned tokens before the row (prompt tuning, prefix tuning)."""
    return bool(is_peft_model(model) and model.active_peft_config.is_prompt_learning)
