"""Which models keep their log-probabilities when rows are moved to the left, packed, or share their
prompts."""

import dataclasses

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from trl_ablate.trainer.architectures import (
    NOT_SHAREABLE,
    PACKABLE,
    RELATIVE,
    frequencies_of_the_pass,
    may_share,
)
from trl_ablate.trainer.forward_passes import Passes
from trl_ablate.trainer.shared_prompts import forward_shared

SMALL = {
    "vocab_size": 120, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    # names in other model families
    "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "d_model": 32, "n_layers": 2,
    "n_heads": 4, "max_seq_len": 64, "ffn_dim": 48, "ffn_hidden_size": 48,
    "word_embed_proj_dim": 32, "rotary_dim": 4, "sliding_window": 4,
    # mixtures of experts, latent attention, state spaces
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "n_group": 1,
    "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 8, "kv_lora_rank": 8,
    "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8, "mamba_n_heads": 4,
    "mamba_d_head": 16, "mamba_expand": 2, "mamba_d_ssm": 64, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    # no dropout
    "attention_dropout": 0.0, "hidden_dropout": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
    "attn_pdrop": 0.0, "dropout": 0.0, "activation_dropout": 0.0, "layerdrop": 0.0,
}  # fmt: skip
WIDE_HEADS = "gemma gemma2 gemma3_text glm glm4 gpt_oss helium hunyuan_v1_dense hunyuan_v1_moe"
SPECIAL = {
    **{name: {"head_dim": 8} for name in [*WIDE_HEADS.split(), "ministral"]},
    "llama4_text": {"head_dim": 8, "attention_chunk_size": 4},
    "bamba": {"attn_layer_indices": [1]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
}
TOLERANCE = 1e-4


def small_model(model_type: str, **shape):
    """A small model with random weights that are large enough for attention to matter."""
    config_class = type(AutoConfig.for_model(model_type))
    known = {field.name for field in dataclasses.fields(config_class)}
    settings = {**SMALL, **SPECIAL.get(model_type, {}), **shape}
    config = config_class(**{name: value for name, value in settings.items() if name in known})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.15)
    return model


PROMPTS, COMPLETIONS = (7, 3, 7, 7, 3, 1), (5, 4, 9, 0, 8, 6)
"""Rows of three prompts, not in order; one has a single token, one row no response."""


def rows_of_three_prompts() -> tuple[torch.Tensor, torch.Tensor, int]:
    """Tokens and mask, with padding on both sides, and the width of the completions."""
    prompt, width = max(PROMPTS), max(COMPLETIONS)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 119, (len(PROMPTS), prompt + width), generator=generator)
    for row, length in enumerate(PROMPTS):
        ids[row, :prompt] = ids[PROMPTS.index(length), :prompt]
    columns = torch.arange(prompt + width)
    starts, ends = (torch.tensor(one)[:, None] for one in (PROMPTS, COMPLETIONS))
    mask = (columns >= prompt - starts) & (columns < prompt + ends)
    return ids * mask, mask.long(), width


def forward_of(model):
    """The model's log-probabilities, as `Passes` ask for them."""

    def forward(ids_NL, mask_NL, completion, labelled_NL=None, **instead):
        given = {"attention_mask": mask_NL, "use_cache": False, **instead}
        logits = model(input_ids=ids_NL, **given).logits
        logps = torch.log_softmax(logits[:, :-1].float(), -1)
        return logps.gather(2, ids_NL[:, 1:, None]).squeeze(2)[:, -completion:], None

    return forward


def one_by_one(forward, ids, mask, width: int):
    """Log-probabilities of the completions, of each row alone."""
    found = []
    for row, count in enumerate(COMPLETIONS):
        alone = ids[row][mask[row].bool()][None]
        logps = forward(alone, torch.ones_like(alone), max(count, 1))[0][0][:count]
        found.append(torch.nn.functional.pad(logps, (0, width - count)))
    return torch.stack(found)


@torch.no_grad()
def of_moving(model) -> float:
    """The largest change of a log-probability when rows of unequal length are moved to the left."""
    rows, forward = rows_of_three_prompts(), forward_of(model)
    padded = forward(*rows)[0] * rows[1][:, -rows[2] :]
    return (Passes()(forward, *rows)[0] - padded).abs().max().item()


@torch.no_grad()
def of_packing(model) -> float:
    """Between rows one by one and rows packed two by two."""
    rows, forward = rows_of_three_prompts(), forward_of(model)
    packed, _ = Passes(packs=True)(forward, *rows, rows_at_once=2)
    return (packed - one_by_one(forward, *rows)).abs().max().item()


def of_sharing(model) -> float:
    """Or the largest relative change of the gradient, between rows one by one and rows that share
    their prompts, in blocks of similar length."""
    rows, forward = rows_of_three_prompts(), forward_of(model)
    shared, _ = forward_shared(forward, *rows, least_saved=6)
    alone = one_by_one(forward, *rows)
    weights = torch.randn(alone.shape, generator=torch.Generator().manual_seed(2))
    found, wanted = (gradient(model, (one * weights).sum()) for one in (shared, alone))
    of_gradient = (found - wanted).norm() / wanted.norm()
    return max((shared - alone).abs().max().item(), of_gradient.item())


def gradient(model, loss: torch.Tensor) -> torch.Tensor:
    parameters = [one for one in model.parameters() if one.requires_grad]
    each = torch.autograd.grad(loss, parameters, allow_unused=True)
    return torch.cat([one.flatten() for one in each if one is not None])


OTHER_ATTENTION = ("codegen", "gpt_neox_japanese", "gptj", "hy_v4")
"""No mask reaches it; some of them have `sdpa` from transformers 5.24 on."""
FEW = ("gemma3_text", "llama", "opt", "phi3", "qwen2", "qwen3", *OTHER_ATTENTION)
LISTED = [*FEW, *(pytest.param(one, marks=pytest.mark.slow) for one in sorted(RELATIVE - {*FEW}))]


@pytest.mark.sample(12)
@pytest.mark.parametrize("model_type", LISTED)
def test_what_is_done_to_rows_is_exact(model_type):
    model = small_model(model_type)
    assert of_moving(model) < TOLERANCE
    if model_type in PACKABLE:
        assert of_packing(model) < TOLERANCE
    if model_type in PACKABLE - NOT_SHAREABLE:
        assert may_share(model) or model_type in OTHER_ATTENTION
        assert not may_share(model) or of_sharing(model) < 5 * TOLERANCE


@pytest.mark.parametrize(
    ("change", "model_type", "listed"),
    [
        *((of_moving, name, RELATIVE) for name in ("gpt2", "xglm", "biogpt")),  # count columns
        *((of_packing, name, PACKABLE) for name in ("mamba", "opt", "bloom")),
        *((of_sharing, name, ()) for name in sorted(NOT_SHAREABLE)),
    ],
)
def test_other_models_would_be_wrong(change, model_type, listed):
    model = small_model(model_type)
    assert model_type not in listed and not may_share(model)
    assert change(model) > 0.1


LONG = {"short_factor": [1.0] * 4, "long_factor": [8.0] * 4}
OF_THE_PASS = {
    "llama": ({"rope_type": "dynamic", "factor": 4.0}, {"max_position_embeddings": 8}),
    "phi3": ({"rope_type": "longrope", **LONG}, {"original_max_position_embeddings": 8}),
}


@pytest.mark.parametrize("model_type", OF_THE_PASS)
def test_frequencies_that_follow_from_the_longest_row_would_be_wrong(model_type):
    rope, shape = OF_THE_PASS[model_type]
    model = small_model(model_type, rope_parameters={"rope_theta": 10000.0, **rope}, **shape)
    assert frequencies_of_the_pass(model.config) and of_packing(model) > 100 * TOLERANCE
    assert not frequencies_of_the_pass(small_model("gemma3_text").config)


def saved(model, tokenizer_of, folder):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_of)
    model.resize_token_embeddings(len(tokenizer))
    model.config.pad_token_id = tokenizer.pad_token_id
    model.config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
