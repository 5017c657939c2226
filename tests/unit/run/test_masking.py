"""Which texts are masked by their shape, and which are not. No token here is real or whole."""

import hashlib
import json
import os
import re
import time

import pytest

from trl_ablate.run.masking import MASK, SHAPES, Masker, known_secrets

MIX = "aB3dE6gH9jK2mN5pQ8rS1tU4vW7xY0zA2bC5dE8fG1hJ4kL7mN0pQ3rS6tU9vW2xY5z" * 2
HEX = hashlib.sha256(b"a key").hexdigest()
PEM = "\n".join([MIX[:64], MIX[1:65], MIX[2:40] + "=="])
BEGIN = "-----BEGIN OPENSSH PRIVATE KEY-----\n"
SECRETS = {
    "Hugging Face": "[hf_" + MIX[:34] + "]",
    "Hugging Face, organisation": "[api_org_" + MIX[:34] + "]",
    "GitHub": "[ghp_" + MIX[:36] + "]",
    "GitHub, fine-grained": "[github_pat_" + MIX[:22] + "_" + MIX[:59] + "]",
    "GitLab": "[glpat-" + MIX[:20] + "]",
    "Anthropic": "[sk-ant-api03-" + MIX[:60] + "-" + MIX[:20] + "AA]",
    "OpenAI": "[sk-proj-" + MIX[:40] + "T3BlbkFJ" + MIX[:40] + "]",
    "OpenAI, DeepSeek, OpenRouter": "[sk-or-v1-" + HEX + "]",
    "AWS, id": "[AKIA" + "QWERTYUIOP123456]",
    "AWS, secret": "aws_secret_access_key = '[" + MIX[:20] + "/+" + MIX[:18] + "]'",
    "Azure": "AccountName=x;AccountKey=[" + MIX[:86] + "==];EndpointSuffix=y",
    "Google": "[AIza" + MIX[:35] + "]",
    "Google, OAuth": "[ya29." + MIX[:60] + "]",
    "Slack": "[xoxb-123456789012-1234567890123-" + MIX[:24] + "]",
    "Slack, webhook": "https://hooks.slack.com/services/[T0123ABCD/B0123ABCD/" + MIX[:24] + "]",
    "Discord, webhook": "https://discord.com/api/webhooks/[123456789012345678/" + MIX[:68] + "]",
    "W&B": "[wandb_v1_" + MIX[:77] + "]",
    "W&B, by its name": "export WANDB_API_KEY=[" + HEX[:40] + "]",
    "Modal": "[as-" + MIX[:22] + "]",
    "Groq, xAI, NVIDIA, Replicate": "[gsk_" + MIX[:52] + "]",
    "Databricks, DigitalOcean": "[dapi" + HEX[:32] + "]",
    "npm, PyPI": "[npm_" + MIX[:36] + "]",
    "Stripe, SendGrid": "[sk_live_" + MIX[:24] + "]",
    "Telegram": "[123456789:AA" + MIX[:33] + "]",
    "JSON web token": f"[eyJ{MIX[:20]}.eyJ{MIX[:40]}.{MIX[:43]}]",
    "header": "Authorization: Basic [dXNlcjpwYXNzd29yZA==]",
    "bearer": "with Bearer [" + MIX[:40] + "] as",
    "private key": f"{BEGIN}[{PEM}]\n-----END OPENSSH PRIVATE KEY-----",
    "age": "[AGE-SECRET-KEY-1" + "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L" * 2 + "]",
    "address": "git+https://[me:p@ss-w0rd]@example.org/x.git",
    "address, token alone": "https://[" + MIX[:40] + "]@github.com/x.git",
    "query": "https://example.org/x?a=1&token=[" + MIX[:20] + "]&b=2",
}
"""Issuer -> a secret in brackets, in the context that one without a prefix of its own needs."""


PLACES = ("{}", "a {} b", "a\n{}", "a\t{} b", "a\x1b{} b", '{{"x": "{}"}}',
          "+key = '{}'\n-  more", "({})")  # fmt: skip


@pytest.mark.parametrize("issuer", SHAPES)
def test_a_token_is_masked_wherever_it_stands(issuer):
    before, secret, after = re.split(r"[][]", SECRETS[issuer])
    for place in PLACES:
        text = place.format(before + secret + after)
        line = Masker(hide_home=False).text(json.dumps({"a": text, "b": [1, text]}))
        assert json.loads(line)["b"][0] == 1
        shown = Masker(hide_home=False).text(text)
        assert MASK in shown
        for part in secret.split("\n"):
            assert part not in line and part not in shown and part[-12:] not in shown
        outside = place.format("\0").split("\0")
        assert shown.startswith(outside[0]) and shown.endswith(outside[1])


def test_a_private_key_in_a_diff_is_masked_to_its_last_line():
    lines = "-----BEGIN PRIVATE KEY-----\n" + PEM + "\n-----END PRIVATE KEY-----"
    diff = "".join(f"+{line}\n" for line in lines.split("\n")) + " unchanged = 1\n"
    shown = Masker().text(diff)
    assert not any(line in shown for line in PEM.split("\n"))
    assert shown.endswith(" unchanged = 1\n")


HARMLESS = [
    "3f9a1c02be-seed0",
    "commit " + hashlib.sha1(b"x").hexdigest(),
    "sha256:" + HEX,
    f'"git": {{"commit": "{hashlib.sha1(b"y").hexdigest()}", "diff": ""}}',
    "Qwen/Qwen2.5-Math-1.5B and HuggingFaceH4/MATH-500",
    "hf_transfer hf_hub hf_xet",
    "eos_token <|im_end|> pad_token_id 151643",
    r"so \boxed{10^{12} + 345678901234567890123456789012345678901234567890} and \frac{a:b}{c@d}",
    "AKIA is a prefix, and so is sk-, ghp_ and xoxb-",
    "task-specific-and-rather-long-names-of-an-arm-with-32-letters",
    "as-you-see-this-is-a-text ak-47 r8_x",
    "sk-learn sk-" + "abcdefghijklmnop" * 3,
    "10:AA 12:30 http://localhost:8000/x https://example.org/a@b?step=12&seed=3",
    "http://127.0.0.1:8000 mail me@example.org",
    "bearer of bad news, the Basic idea, Bearer token",
    "the header -----BEGIN PRIVATE KEY----- begins a key",
    "wandb is a dashboard; its key metrics are train/reward and eval/reward",
    "lr_1e-4_beta_0.04_group_16_std_off_seed_12345678901234567890",
    "x" * 300,
    "completions/mean_length 1.2345678901234567e-05",
    "eyJ alone, and a.b.c",
]


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_looks_long_stays(text):
    assert Masker(hide_home=False).text(text) == text


PIECES = ["x ", "sk-", "hf_", MIX, "aws ", "a:b@", "://a:", "eyJ-", "eyJa.", "wandb key ", "SG.",
          "-----BEGIN PRIVATE KEY-----", "bearer a"]  # fmt: skip


@pytest.mark.sample(4)
@pytest.mark.parametrize("piece", PIECES)
def test_masking_takes_time_in_proportion_to_the_text(piece):
    """Rollouts, and a diff of up to 100,000 characters, are masked while a training waits."""
    began = time.process_time()
    Masker().text(piece * (100_000 // len(piece)))
    assert time.process_time() - began < 1


def test_home_folders_are_hidden_only_in_what_is_published(monkeypatch):
    """Also those of others, as a run may come from another machine."""
    monkeypatch.setenv("HOME", "/srv/ann")
    text = "/srv/ann/runs, /srv/annex, /home/bob/x and https://a.b/home/c"
    assert Masker().text(text) == "~/runs, /srv/annex, ~/x and https://a.b/home/c"
    assert Masker().value({"/srv/ann/a.py": 1}) == {"~/a.py": 1}
    assert Masker(hide_home=False).text(text) == text
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 54321)  # a user without an entry, as in a container
    assert Masker().text("/srv/ann, /home/bob/x") == "/srv/ann, ~/x"


def test_known_secrets_are_masked_and_a_placeholder_is_none():
    masker, rest = Masker({"known-secret", "<HUB_TOKEN>"}), "<HUB_TOKEN>, user:pass@x"
    assert masker.text(f"a known-secret, {rest}") == f"a {MASK}, {rest}"


NAMES = ("secret_key", "access_key", "aws_access_key_id", "github_token", "private_key", "passwd",
         "Authorization", "my-api-key", "db_password")  # fmt: skip


def test_a_text_under_the_name_of_a_secret_is_masked():
    others = {"answer_key": "a", "eos_token": "e"}
    for given, shown in (("y", MASK), (1234, MASK), (True, True), ("", "")):
        masked = {name: {"x": shown} for name in NAMES}
        assert Masker().value({name: {"x": given} for name in NAMES} | others) == masked | others


@pytest.mark.parametrize(
    ("words", "masked"),
    [
        (["--hub_token", "x", "--seed", "1"], ["--hub_token", MASK, "--seed", "1"]),
        (["--hub-token=x", "hub_token=y"], [f"--hub-token={MASK}", f"hub_token={MASK}"]),
        (["--eos_token", "</s>", "--token", "x"], ["--eos_token", "</s>", "--token", MASK]),
    ],
)
def test_command_words_are_masked(words, masked):
    assert Masker().words(words) == masked


def test_secrets_are_found_where_they_are_named(monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "of-the-environment")
    monkeypatch.setenv("HF_TOKEN", "of-hugging-face")
    records = ({"a": [{"hub_token": ["deep", None]}], "eos_token": "</s>"},)
    found = known_secrets(records, ["--hub_token", "said", "--wandb_api_key=equal"], "given")
    assert {"deep", "said", "equal", "given", "of-the-environment", "of-hugging-face"} <= found
    assert "</s>" not in found


def test_a_vocabulary_may_hold_what_a_record_may_not():
    masker = Masker({"password"})
    assert masker.is_clean(b'{"hf_Ab3dEf": 7, "password": 8}')
    assert not masker.is_clean(f'{{"x": "{SECRETS["Hugging Face"][1:-1]}"}}'.encode())


def test_a_word_of_a_function_of_ones_own_is_no_secret():
    """`token` may be the word that a reward counts; a short secret is masked by its name alone."""
    settings = {
        "reward_funcs": [{"path": "r.py:count", "kwargs": {"token": "wait", "api_key": "b"}}]
    }
    masker = Masker(known_secrets([settings, {"hub_token": "wait"}], [], None))
    (reward,) = masker.value(settings)["reward_funcs"]
    assert reward["kwargs"] == {"token": "wait", "api_key": MASK}
    assert masker.value({"wait_column": "wait", "token": "wait"}) == {
        "wait_column": "wait",
        "token": MASK,
    }
