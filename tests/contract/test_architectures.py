"""Which models keep their log-probabilities when rows are moved to the left, packed, or share their
prompts."""

import dataclasses

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from trl_ablate.trainer.architectures import NOT_SHAREABLE, PACKABLE, RELATIVE, may_share
from trl_ablate.trainer.forward_passes import Passes, forward_trimmed, groups_by_length
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
    **{name: {"head_dim": 8} for name in [*WIDE_HEADS.split(), "llama4_text", "ministral"]},
    "bamba": {"attn_layer_indices": [1]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
}
TOLERANCE = 1e-4


def small_model(model_type: str):
    """A small model with random weights that are large enough for attention to matter."""
    config_class = type(AutoConfig.for_model(model_type))
    known = {field.name for field in dataclasses.fields(config_class)}
    settings = {**SMALL, **SPECIAL.get(model_type, {})}
    config = config_class(**{name: value for name, value in settings.items() if name in known})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.15)
    return model


def rows(prompts: tuple[int, ...], completions: tuple[int, ...]):
    """Tokens and mask of rows of these lengths, with padding on both sides."""
    width, prompt = max(completions), max(prompts)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 119, (len(prompts), prompt + width), generator=generator)
    columns = torch.arange(prompt + width)
    starts = prompt - torch.tensor(prompts)[:, None]
    mask = (columns >= starts) & (columns < prompt + torch.tensor(completions)[:, None])
    return ids, mask.long()


def forward_of(model):
    """The model's log-probabilities, as `forward_trimmed` and `forward_packed` ask for them."""

    def forward(ids_NL, mask_NL, completion, labelled_NL=None, **instead):
        given = {"attention_mask": mask_NL, "use_cache": False, **instead}
        logits = model(input_ids=ids_NL, **given).logits
        logps = torch.log_softmax(logits[:, :-1].float(), -1)
        return logps.gather(2, ids_NL[:, 1:, None]).squeeze(2)[:, -completion:], None

    return forward


def one_by_one(forward, ids, mask, completions: tuple[int, ...]):
    """Log-probabilities of the completions, of each row alone."""
    width, found = max(completions), []
    for row, count in enumerate(completions):
        alone = ids[row][mask[row].bool()][None]
        logps = forward(alone, torch.ones_like(alone), max(count, 1))[0][0][:count]
        found.append(torch.nn.functional.pad(logps, (0, width - count)))
    return torch.stack(found)


def of_moving(model) -> float:
    """The largest change of a log-probability when rows of unequal length are moved to the left."""
    prompts, completions = (6, 3, 2), (4, 7, 2)
    width, prompt = max(completions), max(prompts)
    (ids, mask), forward = rows(prompts, completions), forward_of(model)
    with torch.no_grad():
        padded = forward(ids, mask, width)[0] * mask[:, prompt:]
        moved = forward_trimmed(forward, ids, mask, width)[0]
    return (moved - padded).abs().max().item()


def of_packing(model) -> float:
    """Between rows one by one and rows packed two by two; one row has no response."""
    prompts, completions = (6, 3, 2, 4), (4, 7, 0, 2)
    (ids, mask), forward = rows(prompts, completions), forward_of(model)
    with torch.no_grad():
        packed, _ = Passes(packs=True)(forward, ids, mask, max(completions), rows_at_once=2)
        return (packed - one_by_one(forward, ids, mask, completions)).abs().max().item()


SHARED_PROMPTS, SHARED_COMPLETIONS = (7, 3, 7, 7, 3, 1), (5, 4, 9, 0, 8, 6)
"""Rows of three prompts, not in order; one has a single token, one row no response."""


def rows_of_three_prompts() -> tuple[torch.Tensor, torch.Tensor, int]:
    ids, mask = rows(SHARED_PROMPTS, SHARED_COMPLETIONS)
    width, same = max(SHARED_PROMPTS), dict(zip(SHARED_PROMPTS, ids, strict=True))
    for row, length in enumerate(SHARED_PROMPTS):
        ids[row, width - length : width] = same[length][width - length : width].clone()
    return ids * mask, mask, max(SHARED_COMPLETIONS)


def of_sharing(model) -> float:
    """Or the largest relative change of the gradient, between rows one by one and rows that share
    their prompts, in blocks of similar length."""
    (ids, mask, width), forward = rows_of_three_prompts(), forward_of(model)
    weights = torch.randn(len(ids), width, generator=torch.Generator().manual_seed(2))
    shared, _ = forward_shared(
        forward, ids, mask, width, lambda lengths: groups_by_length(lengths, None, 6)
    )
    alone = one_by_one(forward, ids, mask, SHARED_COMPLETIONS)
    found, wanted = (gradient(model, (one * weights).sum()) for one in (shared, alone))
    of_gradient = (found - wanted).norm() / wanted.norm()
    return max((shared - alone).abs().max().item(), of_gradient.item())


def gradient(model, loss: torch.Tensor) -> torch.Tensor:
    parameters = [one for one in model.parameters() if one.requires_grad]
    each = torch.autograd.grad(loss, parameters, allow_unused=True)
    return torch.cat([one.flatten() for one in each if one is not None])


FEW = ["gemma3_text", "llama", "opt", "phi3", "qwen2", "qwen3"]
OTHER_ATTENTION = ("codegen", "gpt_neox_japanese", "gptj", "hy_v4")


def test_the_lists_of_architectures():
    assert PACKABLE < RELATIVE and {*FEW} <= RELATIVE
    assert not {"gpt2", "xglm", "biogpt"} & RELATIVE
    assert not {"mamba", "opt", "bloom"} & PACKABLE


@pytest.mark.parametrize("model_type", FEW)
def test_what_is_done_to_rows_is_exact(model_type):
    model = small_model(model_type)
    assert of_moving(model) < TOLERANCE
    if model_type in PACKABLE:
        assert of_packing(model) < TOLERANCE
    if model_type in PACKABLE - NOT_SHAREABLE - set(OTHER_ATTENTION):
        assert may_share(model) and of_sharing(model) < 5 * TOLERANCE


@pytest.mark.slow
@pytest.mark.sample(12)
@pytest.mark.parametrize("model_type", sorted(RELATIVE - set(FEW)))
def test_it_is_exact_for_every_architecture_that_is_listed(model_type):
    test_what_is_done_to_rows_is_exact(model_type)


@pytest.mark.parametrize(
    ("change", "model_type"),
    [
        *((of_moving, name) for name in ("gpt2", "xglm", "biogpt")),  # they count columns
        *((of_packing, name) for name in ("mamba", "opt", "bloom")),  # rows would see each other
        *((of_sharing, name) for name in sorted(NOT_SHAREABLE - {"llama4_text"})),
    ],
)
def test_other_models_would_be_wrong(change, model_type):
    assert change(small_model(model_type)) > 0.1


@pytest.mark.parametrize("model_type", ["mamba", *sorted(NOT_SHAREABLE)])
def test_other_models_share_no_prompts(model_type):
    assert not may_share(small_model(model_type))


@pytest.mark.parametrize("model_type", OTHER_ATTENTION)
def test_attention_that_no_mask_reaches_shares_no_prompts(model_type):
    """Some of them have `sdpa` from transformers 5.24 on."""
    model = small_model(model_type)
    assert not may_share(model) or of_sharing(model) < 5 * TOLERANCE


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


def test_it_is_said_that_microbatches_stay_padded(make_trainer, tiny_model, tmp_path, caplog):
    gpt2 = saved(small_model("gpt2"), tiny_model, tmp_path / "model")
    make_trainer(model=gpt2)
    assert "'gpt2': microbatches keep TRL's padding: this model type was not" in caplog.text
    caplog.clear()
    make_trainer(model=gpt2, trim_microbatches=False)
    make_trainer()
    assert "keep TRL's padding" not in caplog.text
