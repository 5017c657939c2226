"""Masking of secrets in records and published files: known ones, and text that looks like one.

Known secrets are the token in use, the stored token, environment variables whose name is that of a
secret, and the values of token settings and of `--hub_token` in the run's own records. Text with
the shape of a token (`SHAPES`) is masked everywhere. Model files are never rewritten; one that
holds a token is refused.

detect-secrets 1.5.0 is not used: it finds the tokens of Hugging Face, W&B, Anthropic, Google and
GitHub by entropy alone, and so it also reports a commit, a SHA-256 and a formula.
"""

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import get_token

MASK = "<masked>"

_NAMES = (
    r"(api|access|secret|private|account|auth|signing|encryption|ssh)[_-]?key([_-]?id)?|secret"
    r"|passw(or)?d|passphrase|credentials?"
    r"|(hub|hf|access|auth|bearer|api|refresh|session|github|gh|gitlab|wandb|slack|bot)[_-]?token"
)
_SECRET_NAME = re.compile(rf"(?i)(^|[_-])({_NAMES})$")
_SECRET_SETTING = re.compile(rf"{_SECRET_NAME.pattern}|^(token|authorization)$")
"""`hub_token` and the like, but not `eos_token`, nor the column `answer_key`."""
OF_A_FUNCTION = "kwargs"
"""Arguments of somebody's reward, of which one named `token` is rather a word."""
_SECRET_VARIABLE = re.compile(rf"(?i)(^|_)({_NAMES}|token|key|key_id|pass|pat)$")

_SHORTEST = 8
"""Shorter ones are masked under their names alone: they occur in texts by chance."""
_CERTAIN = 20
"""A file that is not rewritten is refused only for longer secrets: a vocabulary has short ones."""


class Masker:
    def __init__(self, secrets: Iterable[str] = (), hide_home: bool = True):
        long = {one for one in secrets if len(one) >= _SHORTEST and not one.startswith("<")}
        self._secrets = sorted(long, key=len)[::-1]
        home = Path(os.path.expanduser("~"))  # `Path.home` fails where a user has none
        own = {str(one) for one in (home, home.resolve()) if len(one.parts) > 1}
        homes = "|".join([*map(re.escape, sorted(own)), r"/(?:home|Users)/[\w.-]+"])
        self._home = re.compile(rf"(?<![\w.~-])(?:{homes})(?![\w.-])") if hide_home else None

    def text(self, text: str) -> str:
        """The text without secrets, and with `~` for home folders where these are hidden: one's own
        and, as a run may come from another machine, those of others."""
        for secret in self._secrets:
            text = text.replace(secret, MASK).replace(json.dumps(secret)[1:-1], MASK)
        for pattern in _likely(text):
            text = pattern.sub(lambda found: found[0].replace(_secret(found), MASK), text)
        return self._home.sub("~", text) if self._home else text

    def value(self, value: Any, secret: bool = False, within: str = "") -> Any:
        """A JSON value without secrets, also in keys; a text or a whole number whose key names a
        secret is masked."""
        if secret and value and type(value) in (str, int):
            return MASK
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(item, secret) for item in value]
        if isinstance(value, dict):
            return {
                self.text(key): self.value(item, secret or _is_secret(key, within), key)
                for key, item in value.items()
            }
        return value

    def words(self, words: Sequence[str]) -> list[str]:
        """A command line without secrets: `--hub_token X` and `--hub_token=X` keep their flag."""
        return [
            self.text(word) if secret is None else f"{word.removesuffix(secret)}{MASK}"
            for word, secret in _flagged(words)
        ]

    def is_clean(self, content: bytes) -> bool:
        """Whether a file that is not rewritten holds no known secret and no shape of a token."""
        text = content.decode("utf-8", errors="replace")
        found = [secret for secret in self._secrets if secret in text]
        found += [_secret(one) for pattern in _likely(text) for one in pattern.finditer(text)]
        return not any(len(secret) >= _CERTAIN for secret in found)


def known_secrets(records: Iterable[Any], command: Sequence[str], token: str | None) -> set[str]:
    """Every known secret: given, stored, in the environment, and in a run's records."""
    variables = (value for name, value in os.environ.items() if _SECRET_VARIABLE.search(name))
    found = {token, get_token(), *(secret for _, secret in _flagged(command))}
    found |= {value for value in variables if len(value) >= _SHORTEST}
    found |= {secret for record in records for secret in _under_secret_names(record)}
    return {secret for secret in found if secret}


def _flagged(words: Sequence[str]) -> Iterable[tuple[str, str | None]]:
    """Each word of a command line, and the secret in it, by the name of its flag or setting."""
    for before, word in zip(["", *words], words, strict=False):
        name, equals, value = word.partition("=")
        if equals and _SECRET_SETTING.search(name.lstrip("-")):
            yield word, value
        elif before.startswith("--") and _SECRET_SETTING.search(before.lstrip("-")):
            yield word, word
        else:
            yield word, None


def _is_secret(key: str, within: str) -> bool:
    names = _SECRET_NAME if within == OF_A_FUNCTION else _SECRET_SETTING
    return bool(names.search(key))


def _under_secret_names(value: Any, secret: bool = False, within: str = "") -> Iterable[str]:
    """The strings of a JSON value whose key names a secret."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _under_secret_names(item, secret or _is_secret(key, within), key)
    elif isinstance(value, list):
        for item in value:
            yield from _under_secret_names(item, secret)
    elif secret and isinstance(value, str):
        yield value


_MIXED = r"(?=[A-Za-z_-]{0,40}[0-9])(?=[0-9A-Z_-]{0,40}[a-z])"
"""Requires a digit and a small letter among the next characters; words and constants lack one."""

SHAPES: dict[str, str] = {
    "Hugging Face": r"hf_(?:oauth_|jwt_)?(?=[A-Za-z]*[0-9A-Z])[A-Za-z0-9]{6,}[A-Za-z0-9_.-]*",
    "Hugging Face, organisation": r"\bapi_org_[A-Za-z0-9]{30,}",
    "GitHub": r"\bgh[pousr]_[A-Za-z0-9]{30,}",
    "GitHub, fine-grained": r"\bgithub_pat_[A-Za-z0-9_]{22,}",
    "GitLab": r"\bgl(?:pat|ptt|dt|rt|ft|soat|cbt)-[A-Za-z0-9_-]{20,}",
    "Anthropic": r"\bsk-ant-[A-Za-z0-9_-]{20,}",
    "OpenAI": r"\bsk-(?:proj|svcacct|admin|None)-[A-Za-z0-9_-]{20,}",
    "OpenAI, DeepSeek, OpenRouter": rf"\bsk-(?:or-v1-)?{_MIXED}[A-Za-z0-9]{{32,}}",
    "AWS, id": r"\b(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b",
    "AWS, secret": r"(?i)aws.{0,20}?(?:secret|session).{0,30}?[=:]\W{0,4}([A-Za-z0-9/+=]{40,})",
    "Azure": r"\b(?:AccountKey|SharedAccessKey)=([A-Za-z0-9+/=]{40,})",
    "Google": r"\bAIza[0-9A-Za-z_-]{35}",
    "Google, OAuth": r"\b(?:ya29\.|GOCSPX-)[0-9A-Za-z_-]{20,}",
    "Slack": r"\bxox[a-z]-[0-9A-Za-z-]{10,}|\bxapp-\d-[0-9A-Za-z-]{10,}",
    "Slack, webhook": r"hooks\.slack\.com/(?:services|workflows)/([\w/]{20,})",
    "Discord, webhook": r"discord(?:app)?\.com/api/webhooks/([\w/-]{20,})",
    "W&B": r"\bwandb_v\d_[A-Za-z0-9_]{20,}|\blocal-[0-9a-f]{40}\b",
    "W&B, by its name": r"(?i)wandb.{0,12}?(?:key|login|password).{0,4}?\b([0-9a-f]{40})\b",
    "Modal": rf"\ba[ks]-{_MIXED}[A-Za-z0-9]{{22}}\b",
    "Groq, xAI, NVIDIA, Replicate": r"\b(?:gsk_|xai-|nvapi-|r8_)[A-Za-z0-9_-]{36,}",
    "Databricks, DigitalOcean": r"\b(?:dapi[0-9a-f]{32}|do[opr]_v1_[0-9a-f]{64})\b",
    "npm, PyPI": r"\bnpm_[A-Za-z0-9]{36}|\bpypi-AgE[A-Za-z0-9_-]{40,}",
    "Stripe, SendGrid": r"\b[sr]k_(?:live|test)_[0-9A-Za-z]{16,}|\bSG\.[\w-]{20,}\.[\w-]{40,}",
    "Telegram": r"\b\d{8,10}:AA[\w-]{33}",
    "JSON web token": r"\b(?<!-)eyJ[\w-]{8,2000}\.eyJ[\w-]{8,4000}\.[\w-]*",
    "header": r"(?i)\bauthorization\W{1,4}(?:bearer|basic|token)\s+([\w.~+/=-]{8,})",
    "bearer": rf"(?i)\bbearer\s+({_MIXED}[\w.~+/=-]{{20,}})",
    "private key": (
        r"-----BEGIN (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----"
        r"((?:\W{1,4}n?[A-Z][\w-]{1,20}: [\w,-]{1,80}){0,4}"  # headers of an encrypted key
        r"[^\w+/=]{0,8}[\w+/=]{40,}(?:[^\w+/=]{1,8}[\w+/=]{4,})*)"
    ),
    "age": r"\bAGE-SECRET-KEY-1[0-9A-Z]{50,}",
    "address": r"(?<=://)([^\s/:@\"'<>]*:[^\s/\"'<>]+)(?=@)",
    "address, token alone": r"(?<=://)([A-Za-z0-9_-]{20,})(?=@)",
    "query": (
        r"(?i)[?&](?:access_?token|auth_?token|token|api_?key|password|secret|sig|signature"
        r"|x-amz-(?:signature|security-token))=([^&\s\"'<>]{8,})"
    ),
}
"""Issuer -> pattern of its tokens, keys or passwords.

Every pattern has its own prefix or context: 40 hexadecimal digits are a commit, but a key after
`WANDB_API_KEY=`. If a pattern has a group, only the group is the secret.
"""

_BOUNDARY = r"(?:\b|(?<=\\[abfnrtv])|(?<=\\x[\da-f]{2})|(?<=\\u[\da-f]{4}))"
"""A word also begins after `\\n` and other escapes, whose last letter is no part of it."""
_COMPILED = [
    (re.compile(pattern.replace(r"\b", "")), re.compile(pattern.replace(r"\b", _BOUNDARY)))
    for pattern in SHAPES.values()
]
"""Each pattern without its boundaries, which finds as much and more 15 times as fast, and with."""


def _likely(text: str) -> list[re.Pattern[str]]:
    """The patterns that may occur in a text."""
    return [pattern for likely, pattern in _COMPILED if likely.search(text)]


def _secret(found: re.Match[str]) -> str:
    return found[found.lastindex or 0]
