"""Taken gradients on disk, so that an X-ray that was interrupted continues. No pickles."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from trl_ablate.xray.gradients import TakenGradients

ARRAYS = ("norms_B", "sketches_BM", "adam_norms_B", "adam_sketches_BM", "cell_sketches_CM",
          "seconds_B")  # fmt: skip
ABOUT = "about"


def key_of(values: Mapping[str, Any]) -> str:
    """A digest of everything that the gradients depend on."""
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def write(file: Path, key: str, taken: TakenGradients) -> None:
    """Write atomically."""
    file.parent.mkdir(parents=True, exist_ok=True)
    known: dict[str, Any] = vars(taken)
    values = {name: known[name] for name in ARRAYS if known[name] is not None}
    values |= {f"pushes_{name}": one for name, one in taken.pushes.items()}
    about = json.dumps({"key": key, "cells": taken.cells, "tokens": taken.tokens})
    part = file.with_suffix(".part.npz")
    np.savez(part, allow_pickle=False, **{**values, ABOUT: np.array(about)})
    part.replace(file)


def read(file: Path, key: str) -> TakenGradients | None:
    """What was written; None if there is nothing, something else, or a damaged file."""
    if not file.exists():
        return None
    try:
        with np.load(file, allow_pickle=False) as stored:
            about = json.loads(str(stored[ABOUT]))
            if about["key"] != key:
                return None
            named = {name: stored[name] for name in stored.files}
    except (OSError, ValueError, KeyError, BadZipFile):
        return None
    pushes = {
        name.removeprefix("pushes_"): one
        for name, one in named.items()
        if name.startswith("pushes_")
    }
    fields = {one.name for one in dataclasses.fields(TakenGradients)}
    values = {name: named.get(name) for name in ARRAYS if name in fields}
    return TakenGradients(**values, cells=about["cells"], tokens=about["tokens"], pushes=pushes)  # pyright: ignore[reportArgumentType]
