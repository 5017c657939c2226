"""Masking of secrets in records and published files: known ones, and text that looks like one.

Known secrets are the token in use, the stored token, environment variables whose name is that of a
secret, and the values of token settings and of `--hub_token` in the run's own records. Text with
the shape of a token (`token_shapes`) is masked everywhere. Model files are never rewritten; one
that holds a token is refused.
"""

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import get_token

from trl_ablate.run.token_shapes import replace_tokens, tokens_in

MASK = "<masked>"

_SECRET_VARIABLE = re.compile(
    r"(^|_)(TOKEN|API_?KEY|KEY|KEY_ID|SECRET|PASSWORD|PASSWD|PASS|PASSPHRASE|PAT|CREDENTIALS?)$",
    re.IGNORECASE,
)
_SECRET_SETTING = re.compile(
    r"(^|[_-])(hub|hf|access|auth|bearer)[_-]?token$|^token$|(^|[_-])(api_?key|secret|password)$",
    re.IGNORECASE,
)
"""`hub_token` and the like, but not `eos_token`."""

_SHORTEST = 8
"""Shorter values of environment variables are not masked: they occur in texts by chance."""
_CERTAIN = 20
"""A file that is not rewritten is refused only for longer secrets: a vocabulary has short ones."""


class Masker:
    """Replaces secrets in text, in JSON values and in command lines."""

    def __init__(self, secrets: Iterable[str] = (), hide_home: bool = True):
        self._secrets = sorted({s for s in secrets if s and not s.startswith("<")}, key=len)[::-1]
        home = str(Path.home())
        self._home = (
            re.compile(re.escape(home) + r"(?![\w.-])") if hide_home and len(home) > 1 else None
        )

    def text(self, text: str) -> str:
        """The text without secrets, and with `~` for the home folder where that is hidden."""
        for secret in self._secrets:
            text = text.replace(secret, MASK).replace(json.dumps(secret)[1:-1], MASK)
        text = replace_tokens(text, MASK)
        return self._home.sub("~", text) if self._home else text

    def value(self, value: Any, secret: bool = False) -> Any:
        """A JSON value without secrets; every text whose key names a secret is masked."""
        if isinstance(value, str):
            return MASK if secret and value else self.text(value)
        if isinstance(value, list):
            return [self.value(item, secret) for item in value]
        if isinstance(value, dict):
            return {
                key: self.value(item, secret or bool(_SECRET_SETTING.search(key)))
                for key, item in value.items()
            }
        return value

    def words(self, words: Sequence[str]) -> list[str]:
        """A command line without secrets: `--hub_token X` and `--hub_token=X` keep their flag."""
        shown: list[str] = []
        for position, word in enumerate(words):
            name, equals, _ = word.partition("=")
            before = words[position - 1] if position else ""
            if equals and _is_secret_flag(name):
                shown.append(f"{name}={MASK}")
            elif before.startswith("--") and "=" not in before and _is_secret_flag(before):
                shown.append(MASK)
            else:
                shown.append(self.text(word))
        return shown

    def is_clean(self, content: bytes) -> bool:
        """Whether a file that is not rewritten holds no known secret and no shape of a token."""
        text = content.decode("utf-8", errors="replace")
        known = [secret for secret in self._secrets if secret in text]
        return not any(len(secret) >= _CERTAIN for secret in tokens_in(text) + known)


def known_secrets(records: Iterable[Any], command: Sequence[str], token: str | None) -> set[str]:
    """Every known secret: given, stored, in the environment, and in a run's records."""
    found = {token or "", get_token() or ""}
    found |= {
        value
        for name, value in os.environ.items()
        if _SECRET_VARIABLE.search(name) and len(value) >= _SHORTEST
    }
    for record in records:
        found |= set(_under_secret_names(record))
    for before, word in zip(["", *command], command, strict=False):
        name, equals, value = word.partition("=")
        if equals and _is_secret_flag(name):
            found.add(value)
        elif before.startswith("--") and "=" not in before and _is_secret_flag(before):
            found.add(word)
    return found - {""}


def _is_secret_flag(word: str) -> bool:
    return bool(_SECRET_SETTING.search(word.lstrip("-")))


def _under_secret_names(value: Any, secret: bool = False) -> Iterable[str]:
    """The strings of a JSON value whose key names a secret."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _under_secret_names(item, secret or bool(_SECRET_SETTING.search(key)))
    elif isinstance(value, list):
        for item in value:
            yield from _under_secret_names(item, secret)
    elif secret and isinstance(value, str):
        yield value
