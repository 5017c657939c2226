"""A forward pass without padding: the rows of a microbatch in one row, behind one another.

The positions of each row start at 0, by which transformers tells the rows apart: flash attention
computes each by itself, other kinds of attention mask what belongs to other rows. So no token sees
another row, and its log-probability stays the same up to rounding. Models with a state that runs
along the row (Mamba, convolutions) would carry it into the next one.
"""

from collections.abc import Callable

import torch

from trl_ablate.errors import ConfigurationError

# Of the types in `architectures.RELATIVE`, those that `tests/contract/test_packing.py` tested.
MEASURED = """
apertus arcee aria_text bitnet codegen cohere cohere2 cwm deepseek_v2 deepseek_v3 diffllama
ernie4_5 ernie4_5_moe exaone4 exaone_moe flex_olmo fuyu gemma gemma2 gemma3_text gemma4_text glm
glm4 glm4_moe glm4_moe_lite gpt_neox gpt_neox_japanese gptj granite granitemoe granitemoeshared
helium hrm_text hunyuan_v1_dense hunyuan_v1_moe hy_v3 hy_v4 hyperclovax jais2 jetmoe llama
llama4_text mellum minicpm3 minimax_m2 minimax_m3_vl_text ministral ministral3 mistral mixtral
modernbert-decoder nanochat nemotron olmo olmo2 olmo3 olmoe persimmon phi phi3 phimoe qwen2
qwen2_moe qwen3 qwen3_moe seed_oss smollm3 solar_open stablelm starcoder2 vaultgemma
"""

PACKABLE = frozenset(MEASURED.split())
"""Values of `model_type` in a model's configuration."""


def check_packs(model_type: str, *, trimmed: bool) -> None:
    """Refuse `padding_free` for a model that would give other log-probabilities, or keeps TRL's
    padding."""
    if not trimmed:
        raise ConfigurationError(
            "padding_free leaves out the padding that this run keeps; set trim_microbatches: true, "
            "or padding_free: false (an auxiliary loss, an unknown model type or prompt tuning "
            "keep TRL's padding, too)"
        )
    if model_type not in PACKABLE:
        raise ConfigurationError(
            f"padding_free was not tested with model type '{model_type}', whose rows may see each "
            f"other; set it to false, or use one of {', '.join(sorted(PACKABLE))}"
        )


def forward_packed(
    forward: Callable[..., tuple],
    ids_NL: torch.Tensor,
    mask_NL: torch.Tensor,
    completion_length: int,
    rows_at_once: int | None = None,
) -> tuple[torch.Tensor | None, ...]:
    """The results of `forward(ids, mask, completion_length, labelled, **inputs)` for each token,
    from one row without padding for every `rows_at_once` rows.

    The results, each `(N, completion_length)` or None, are 0 at padding. `labelled` is 1 at the
    tokens whose results are used, and `inputs` replace those of the model.
    """
    size = rows_at_once or len(ids_NL)
    parts = [
        _forward_rows(forward, ids, mask, completion_length)
        for ids, mask in zip(ids_NL.split(size), mask_NL.split(size), strict=True)
    ]
    return tuple(
        None if None in column else torch.cat(column) for column in zip(*parts, strict=True)
    )


def _forward_rows(
    forward: Callable[..., tuple], ids_NL: torch.Tensor, mask_NL: torch.Tensor, width: int
) -> tuple[torch.Tensor | None, ...]:
    real_NL = mask_NL.bool()
    ids_1P = ids_NL[real_NL][None]
    positions_1P = (mask_NL.cumsum(dim=1) - 1)[real_NL][None]
    response_NL = real_NL.clone()
    response_NL[:, : mask_NL.size(1) - width] = False
    response_1P = response_NL[real_NL][None]
    found = forward(
        ids_1P,
        torch.ones_like(ids_1P),
        ids_1P.size(1) - 1,  # nothing predicts the first token, which is of a prompt
        response_1P.long(),
        attention_mask=None,
        position_ids=positions_1P,
        use_cache=False,
    )
    response_NT = response_NL[:, -width:]
    return tuple(
        None if value is None else _unpacked(value[response_1P[:, 1:]], response_NT)
        for value in found
    )


def _unpacked(values_R: torch.Tensor, response_NT: torch.Tensor) -> torch.Tensor:
    """The values of R response tokens in their places, and 0 elsewhere."""
    return values_R.new_zeros(response_NT.shape).masked_scatter(response_NT, values_R)
