"""Test which models keep their log-probabilities when rows are moved to the left."""

import dataclasses

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer

from tests.contract.test_loss_metrics import rollouts_of_unequal_length
from trl_ablate import AblationTrainer
from trl_ablate.trainer.architectures import RELATIVE
from trl_ablate.trainer.forward_passes import forward_trimmed

SMALL = {
    "vocab_size": 120,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # names in other model families
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "d_model": 32,
    "n_layers": 2,
    "n_heads": 4,
    "max_seq_len": 64,
    "ffn_dim": 48,
    "ffn_hidden_size": 48,
    "word_embed_proj_dim": 32,
    "rotary_dim": 4,
    "sliding_window": 4,
    # mixtures of experts, latent attention, state spaces
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_expand": 2,
    "mamba_d_ssm": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    # no dropout
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "dropout": 0.0,
    "activation_dropout": 0.0,
    "layerdrop": 0.0,
}
WIDE_HEADS = "gemma gemma2 gemma3_text glm glm4 gpt_oss helium hunyuan_v1_dense hunyuan_v1_moe"
SPECIAL = {
    **{name: {"head_dim": 8} for name in [*WIDE_HEADS.split(), "llama4_text", "ministral"]},
    "bamba": {"attn_layer_indices": [1]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
}
PROMPTS, COMPLETIONS = (6, 3, 2), (4, 7, 2)
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


def largest_change(model) -> float:
    """The largest change of a log-probability when rows of unequal length are moved to the left."""
    width, prompt = max(COMPLETIONS), max(PROMPTS)
    (ids, mask), forward = rows(PROMPTS, COMPLETIONS), forward_of(model)
    with torch.no_grad():
        padded = forward(ids, mask, width)[0] * mask[:, prompt:]
        moved = forward_trimmed(forward, ids, mask, width)[0]
    return (moved - padded).abs().max().item()


FEW = ["gemma3_text", "llama", "opt", "phi3", "qwen2", "qwen3"]


@pytest.mark.parametrize("model_type", FEW)
def test_moving_rows_is_exact(model_type):
    assert model_type in RELATIVE
    assert largest_change(small_model(model_type)) < TOLERANCE


@pytest.mark.slow
@pytest.mark.sample(20)
@pytest.mark.parametrize("model_type", sorted(RELATIVE - set(FEW)))
def test_moving_rows_is_exact_for_every_architecture_that_is_listed(model_type):
    assert largest_change(small_model(model_type)) < TOLERANCE


@pytest.mark.parametrize("model_type", ["gpt2", "xglm", "biogpt"])
def test_models_that_count_columns_are_left_padded(model_type):
    assert model_type not in RELATIVE
    assert largest_change(small_model(model_type)) > 0.1


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


@pytest.mark.parametrize(("model_type", "aux"), [("gpt2", None), ("qwen2_moe", 0.1)])
def test_models_with_rows_that_may_not_be_moved_train_as_in_stock_trl(
    make_trainer, tiny_model, tmp_path, model_type, aux
):
    """With default speed-ups: a model that counts columns, and one with an auxiliary loss."""
    folder = saved(small_model(model_type), tiny_model, tmp_path / "model")
    settings = {
        "model": folder,
        "router_aux_loss_coef": aux,
        "optim": "sgd",
        "learning_rate": 0.3,
        "extras": {"rollout_func": rollouts_of_unequal_length},
    }
    trained = []
    for classes in ((AblationTrainer,), (GRPOTrainer, GRPOConfig)):
        trainer = make_trainer(*classes, **settings)
        trainer.train()
        trained.append(list(trainer.model.parameters()))
    for mine, theirs in zip(*trained, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=0)


def test_it_is_said_that_microbatches_stay_padded(make_trainer, tiny_model, tmp_path, caplog):
    make_trainer(model=saved(small_model("gpt2"), tiny_model, tmp_path / "model"))
    assert "'gpt2': microbatches keep TRL's padding: this model type was not" in caplog.text
    caplog.clear()
    make_trainer(trim_microbatches=False)
    make_trainer()
    assert "keep TRL's padding" not in caplog.text
