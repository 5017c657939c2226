"""Which model a run starts from, and whether its files are whole: errors are one sentence.

Every library has its own error for a file that is cut off, and for some that are missing none.
"""

import re
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.integrations import deepspeed
from transformers.utils import logging
from transformers.utils.chat_template_utils import render_jinja_template
from trl import get_peft_config

from trl_ablate import miniature
from trl_ablate.errors import ConfigurationError, brief
from trl_ablate.miniature.cache import no_bars_of_transformers
from trl_ablate.miniature.registry import is_miniature, world_of_model
from trl_ablate.recipe.resolving import Resolved
from trl_ablate.run.failures import one_sentence
from trl_ablate.trainer.temporary import replaced
from trl_ablate.training.machine import starting_point

logger = logging.get_logger(__name__)


def load_tokenizer(model: str, resolved: Resolved) -> PreTrainedTokenizerBase:
    if Path(model).is_dir() and not (Path(model) / "tokenizer_config.json").exists():
        raise ConfigurationError(f"{model} has no tokenizer_config.json; put its tokenizer there")
    tokenizer = AutoTokenizer.from_pretrained(
        model,
        revision=resolved.model.model_revision,
        padding_side="left",
        truncation_side="left",
        trust_remote_code=resolved.config.trust_remote_code,
    )
    if resolved.task.chat_template is not None:
        tokenizer.chat_template = _chat_template(resolved.task.chat_template)
    if resolved.task.tools or resolved.task.environment_factory:
        read_calls(tokenizer)
    if tokenizer.eos_token_id is None:
        raise ConfigurationError(
            f"the tokenizer of {model} has no eos_token, at which a completion ends; name one in "
            "tokenizer_config.json"
        )
    if "1" not in tokenizer.decode(tokenizer.encode("1", add_special_tokens=False)):
        raise ConfigurationError(
            f"the tokenizer of {model} does not know '1': its vocabulary is missing; add "
            "tokenizer.json"
        )
    return tokenizer


def read_calls(tokenizer: PreTrainedTokenizerBase) -> None:
    """Read calls in a chat template that TRL does not know as Qwen writes them: JSON in
    `<tool_call>` tags."""
    from trl.chat_template_utils import add_response_schema, qwen3_template

    own = (vars(tokenizer).get(name) for name in ("response_template", "response_schema"))
    if tokenizer.chat_template is None or any(own):
        return
    try:
        add_response_schema(tokenizer)
    except ValueError:
        fields: dict[str, Any] = cast(Any, qwen3_template)["fields"]
        end = {"close_pattern": re.escape(str(tokenizer.eos_token)) + r"\s*", "content": "text"}
        asked = [{"role": "user", "content": "?"}]
        opened, without = (
            str(tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=opens))
            for opens in (True, False)
        )
        cast(Any, tokenizer).response_template = {
            **qwen3_template,
            "start_anchor": opened.removeprefix(without),  # such as <|assistant|>
            "fields": {**fields, "content": end},
        }


def _chat_template(file: str) -> str:
    from jinja2 import TemplateSyntaxError

    try:
        text = Path(file).read_text(encoding="utf-8-sig")
        render_jinja_template([], chat_template=text)  # compiles it, as its first use will
    except FileNotFoundError:
        raise ConfigurationError(
            f"there is no chat template {file}; create it, or correct the path, which is relative "
            "to the recipe"
        ) from None
    except (TemplateSyntaxError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"chat template {file} is not a Jinja template ({error}); correct it"
        ) from error
    return text


def check_vocabulary(
    tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig, model: str
) -> None:
    """Refuse a tokenizer with tokens that the model has no embedding of.

    Special ones aside: Gemma's tokenizer has one for images, which its text models lack.
    """
    rows = getattr(config.get_text_config(), "vocab_size", None)
    special = {key for key, one in tokenizer.added_tokens_decoder.items() if one.special}
    ends = {one for one in (tokenizer.eos_token_id, tokenizer.pad_token_id) if type(one) is int}
    used = (set(tokenizer.get_vocab().values()) - special) | ends
    if rows is not None and max(used) >= rows:
        raise ConfigurationError(
            f"the tokenizer of {model} has tokens up to {max(used)}, but the model has embeddings "
            f"of {rows} tokens; take the tokenizer that belongs to the model"
        )


def check_finite(model: torch.nn.Module, name: str) -> None:
    """Refuse weights that are NaN or infinite: no training gets rid of them."""
    kinds = (torch.float32, torch.float16, torch.bfloat16)
    for key, weight in model.named_parameters():
        if weight.dtype in kinds and not torch.isfinite(weight).all():
            raise ConfigurationError(
                f"{name} has weights that are no numbers (NaN or infinite), first in {key}; start "
                "from another model"
            )


def check_model(model: str, resolved: Resolved) -> PreTrainedConfig:
    """Refuse a model whose config cannot be read or, of a folder, whose safetensors are not all
    that the architecture has."""
    config = _config_of(model, resolved)
    tied = getattr(config.get_text_config(), "tie_word_embeddings", False)
    if tied and resolved.config.cast_lm_head_to_fp32 and resolved.model.use_peft:
        raise ConfigurationError(  # TRL 1.16 does not find the embedding inside of an adapter
            f"cast_lm_head_to_fp32 is true, but {model} shares the head's weights with its "
            "embedding, which TRL does not find with use_peft; set one of the two to false"
        )
    if Path(model).is_dir():
        if not any(Path(model).glob("*.safetensors")):
            raise ConfigurationError(
                f"{model} holds no safetensors weights (model.safetensors); put them there "
                "(pickled ones are not read: save them again with save_pretrained)"
            )
        _check_tensors(Path(model), config, resolved)
    return config


def context_of(model: str, resolved: Resolved) -> int | None:
    """The tokens that a model was made for; None where its config does not say."""
    if is_adapter(model):
        return None  # those of its base are known once the base is loaded
    config = _config_of(model, resolved).get_text_config()
    return getattr(config, "max_position_embeddings", None)  # under its own name, as n_positions


def _config_of(model: str, resolved: Resolved) -> PreTrainedConfig:
    return AutoConfig.from_pretrained(
        model,
        revision=resolved.model.model_revision,
        trust_remote_code=resolved.config.trust_remote_code,
    )


def is_adapter(model: str) -> bool:
    return (Path(model) / "adapter_config.json").is_file()


def _check_tensors(folder: Path, config: PreTrainedConfig, resolved: Resolved) -> None:
    """Refuse weights that lack tensors, which would be drawn at random, or have others' shapes.

    transformers itself matches the names, as it does when it loads, but on the meta device: there
    it reads the headers of the files and no weights. Left out are models that bring their own code,
    and quantized ones, whose tensors are made by kernels that the meta device lacks.
    """
    architecture = getattr(transformers, (config.architectures or [""])[0], None)
    if architecture is None or getattr(config, "quantization_config", None):
        return
    if not architecture.can_generate() or config.is_encoder_decoder:
        raise ConfigurationError(
            f"{folder} is a {architecture.__name__}, which generates no text after a prompt; take "
            "a causal language model"
        )
    if resolved.config.router_aux_loss_coef and not hasattr(
        config.get_text_config(), "output_router_logits"
    ):
        raise ConfigurationError(
            f"router_aux_loss_coef is {resolved.config.router_aux_loss_coef}, but {folder} has no "
            "experts to balance; set it to null"
        )
    with silent(), replaced(deepspeed, _hf_deepspeed_config_weak_ref=None):  # no meta in ZeRO-3
        loading = {
            "attn_implementation": resolved.model.attn_implementation,
            **cast(dict[str, Any], resolved.config.model_init_kwargs or {}),
            "config": config,
            "device_map": "meta",
            "use_safetensors": True,
            "ignore_mismatched_sizes": True,
            "output_loading_info": True,
        }
        try:
            empty, found = architecture.from_pretrained(folder, **loading)
        except TypeError as error:
            raise ConfigurationError(
                f"model_init_kwargs does not suit {folder} ({brief(error, 200)}); remove what it "
                "does not take"
            ) from error
    if missing := sorted(found["missing_keys"]):
        raise ConfigurationError(
            f"{folder} lacks {len(missing)} of its tensors ({', '.join(missing[:3])}"
            f"{', ...' * (len(missing) > 3)}), which would be random numbers; save the model again "
            "with save_pretrained"
        )
    for name, here, wanted in sorted(found["mismatched_keys"]):
        raise ConfigurationError(
            f"the tensor {name} in {folder} is {list(here)}, where config.json wants "
            f"{list(wanted)}; take the config.json that belongs to these weights"
        )
    if adapter := get_peft_config(resolved.model):
        from peft import inject_adapter_in_model

        with one_sentence("the adapter", "change lora_target_modules, or the other lora settings"):
            inject_adapter_in_model(adapter, empty, low_cpu_mem_usage=True)


@contextmanager
def silent():
    """Without transformers' warnings, and its table and bar of a loading."""
    before = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        with no_bars_of_transformers():
            yield
    finally:
        logging.set_verbosity(before)


def checked_tokenizer(model: str, resolved: Resolved) -> PreTrainedTokenizerBase:
    """The tokenizer of a model whose files are whole."""
    if is_adapter(model):
        raise ConfigurationError(
            f"{model} is an adapter, and a training starts from a whole model; name its base, or "
            "save the two merged (peft's merge_and_unload) and name that folder"
        )
    with one_sentence(f"model {model}", "restore its files, or give another --model_name_or_path"):
        config, tokenizer = check_model(model, resolved), load_tokenizer(model, resolved)
        check_vocabulary(tokenizer, config, model)
        return tokenizer


def merged_adapter(folder: str, resolved: Resolved) -> PreTrainedModel:
    """The base of a saved adapter, with the adapter added to its weights."""
    from peft import AutoPeftModelForCausalLM

    dtype = resolved.model.dtype or "float32"
    if resolved.model.load_in_4bit or resolved.model.load_in_8bit:
        logger.warning(
            "the adapter of %s was trained on quantized weights, and is evaluated on those of %s: "
            "other numbers than in the training, and more memory (--dtype bfloat16 takes half of "
            "float32)",
            *(folder, dtype),
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Found missing adapter keys")
        adapted: Any = AutoPeftModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation=resolved.model.attn_implementation,
            trust_remote_code=resolved.config.trust_remote_code,
        )
    return adapted.merge_and_unload()


def starting_model(resolved: Resolved) -> str:
    """What training starts from; `miniature/WORLD/STAGE` as the folder that it is built in."""
    name = starting_point(resolved)
    if not is_miniature(name):
        return name
    world, stage = world_of_model(name)
    return str(miniature.build(stage, world=world))
