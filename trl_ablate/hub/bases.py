"""The model that a run started from, as the Hub knows it. No torch."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from huggingface_hub.utils import HFValidationError, validate_repo_id

from trl_ablate.data.row_files import is_on_the_hub
from trl_ablate.reward_specs import GYM

MINIATURE = "miniature"


def base_model(config: Mapping[str, Any]) -> str | None:
    """Model id or folder that training started from."""
    task = config["task"]
    if task["start"] == "base":
        return config["model"]["model_name_or_path"]
    return (task["starts"] or {}).get(task["start"])


def base_revision(config: Mapping[str, Any]) -> str | None:
    """The revision that the base was loaded from; None for `main`."""
    given = {"revision": config["model"].get("model_revision")}
    found = {**given, **(config["config"].get("model_init_kwargs") or {})}["revision"]
    return None if found == "main" else found


def hub_id(name: str | None) -> str | None:
    """The name, if it can be an id on the Hub: OWNER/NAME, not a path, the miniature or a gym."""
    if not name or "/" not in name or name.startswith((f"{MINIATURE}/", GYM)):
        return None
    with suppress(HFValidationError):
        validate_repo_id(name)
        return name if is_on_the_hub(name) else None
    return None


def is_miniature(name: str | None) -> bool:
    return (name or "").partition("/")[0] == MINIATURE
