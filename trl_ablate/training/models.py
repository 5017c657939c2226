"""A model's files, looked at before anything is built on them: what is wrong is one sentence.

Every library has its own error for a file that is cut off, and for some that are missing none:
without its vocabulary a tokenizer is made that knows no word.
"""

import json
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

from safetensors import safe_open
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from trl_ablate.errors import ConfigurationError
from trl_ablate.recipe.resolving import Resolved
from trl_ablate.run.failures import is_disk_full


@contextmanager
def told(what: str, mend: str):
    """Whatever goes wrong with reading `what` is told as one sentence, with how to mend it."""
    try:
        yield
    except ConfigurationError:
        raise
    except Exception as error:
        if is_disk_full(error):
            raise
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise ConfigurationError(f"{what} could not be loaded ({reason}); {mend}") from error


@contextmanager
def looked_at_again(look: Callable[[], object]):
    """A file may go, or be cut off, between the first look and the loading. What is raised then is
    any library's error; it is told as what `look` says by now, or left alone if that finds nothing.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, ConfigurationError) and not is_disk_full(error):
            look()
        raise


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
    if "1" not in tokenizer.decode(tokenizer.encode("1", add_special_tokens=False)):
        raise ConfigurationError(
            f"the tokenizer of {model} cannot say '1'; put its vocabulary (tokenizer.json) there"
        )
    return tokenizer


def check_model(model: str, resolved: Resolved) -> None:
    """Its config can be read and, if it is a folder, its weights are there, as safetensors, and
    as long as they say."""
    AutoConfig.from_pretrained(
        model,
        revision=resolved.model.model_revision,
        trust_remote_code=resolved.config.trust_remote_code,
    )
    if Path(model).is_dir():
        _check_weights(Path(model))


def is_adapter(model: str) -> bool:
    return (Path(model) / "adapter_config.json").is_file()


def _check_weights(folder: Path) -> None:
    """Every shard is there, and as long as its own header says."""
    index = folder / "model.safetensors.index.json"
    listed = json.loads(index.read_bytes())["weight_map"].values() if index.exists() else ()
    shards = {folder / name for name in listed} | set(folder.glob("*.safetensors"))
    if not shards:
        raise ConfigurationError(
            f"{folder} holds no safetensors weights (model.safetensors); put them there (pickled "
            "ones are not read: save them again with save_pretrained)"
        )
    for shard in sorted(shards):
        with safe_open(shard, "pt"):
            pass
