r"""Patterns of tokens, keys and passwords of many issuers. No torch.

detect-secrets 1.5.0 was measured and is not used: it has no rule for Hugging Face, W&B, Anthropic,
Google or fine-grained GitHub tokens. It finds them by entropy alone, and so it also reports a
commit, a SHA-256 and a formula. It takes 4.7 ms per line, and imports requests.

Every pattern has its own prefix or context: 40 hexadecimal digits are a commit, but a key after
`WANDB_API_KEY=`. If a pattern has a group, only the group is the secret.
"""

import re
from collections.abc import Callable

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
    "JSON web token": r"(?<![\w-])eyJ[\w-]{8,2000}\.eyJ[\w-]{8,4000}\.[\w-]*",
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
"""Issuer -> pattern."""

_COMPILED = [re.compile(pattern) for pattern in SHAPES.values()]


def replace_tokens(text: str, mask: str) -> str:
    """The text with every token replaced."""
    for pattern in _COMPILED:
        text = pattern.sub(_group_replaced(mask), text)
    return text


def tokens_in(text: str) -> list[str]:
    """Everything in the text that looks like a token."""
    return [_secret(found) for pattern in _COMPILED for found in pattern.finditer(text)]


def _secret(found: re.Match[str]) -> str:
    return found[found.re.groups and found.lastindex or 0]


def _group_replaced(mask: str) -> Callable[[re.Match[str]], str]:
    def replaced(found: re.Match[str]) -> str:
        group = found.lastindex or 0
        before = found[0][: found.start(group) - found.start()]
        return before + mask + found[0][found.end(group) - found.start() :]

    return replaced
