"""Damaged recipes: each resolves to values of the declared types, or is refused with a message."""

import time
from collections import Counter
from enum import Enum
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trl_ablate import ConfigurationError, load_recipe
from trl_ablate.recipe.fields import known_fields
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.recipe.strict import accepts

ARMS = sorted(SHIPPED.glob("*.yaml"))
PROFILES = sorted(path.stem for path in (SHIPPED / "profiles").glob("*.yaml"))
SECONDS = 1.0

HOSTILE_VALUES = (
    "~", "''", "-0.0", "1e999", "0x10", "010", "1_000", "2026-01-01", "12:30:45", "9" * 25,
    "9" * 9000, "[a, [b]]", "{a: {b: [c]}}", "{1: 2}", "x" * 20_000, '"\\0"', '"\\ud800"',
    '"\\e[31m"', '"a\\nb"', '"\\u2028"', "\u0661\u0662", "../../../etc/passwd", "/dev/zero",
    "~root/x", "!!python/object/apply:os.system [echo]", "!!set {a}", "!!timestamp 2026-13-45",
    "! x", "&a [*a]", "*nobody", "<<: 1", "|\n  block\n  text", "- item", "? key", "@x", "%x",
    "[" * 3000, "[" + "1," * 60_000 + "1]", "{a: text", "'open", "'{\"a\": 1}'",
)  # fmt: skip
HOSTILE_TEXTS = (
    "", "\t", "\ufeff", "null", "--- a\n--- b\n", "%YAML 9.9\n---\na: 1", "\0", "x" * 190_000,
    "\n".join(f"key{i}: {i}" for i in range(9000)), "#" * 190_000, "- " * 90_000, "? " * 90_000,
    "&a " * 50_000, "a: &a {<<: *a}", "a: &a [x]\nb: &b [*a,*a]\nc: [*b,*b,*b]\n",
    "a:\n" + "".join(" " * i + "a:\n" for i in range(1, 400)), "extends: " + "x" * 5000,
    "extends: ''", "profile: " + "x/" * 3000, "profile: .yaml", '"a\\nb": 1',
    "'" + "k" * 5000 + "': 1",
)  # fmt: skip
values = st.sampled_from(HOSTILE_VALUES)
values |= st.text(max_size=8) | st.integers().map(str) | st.floats().map(str)


@st.composite
def damaged(draw) -> bytes:
    """A shipped recipe with something wrong, mostly about one setting."""
    text = draw(st.sampled_from(ARMS)).read_text(encoding="utf-8")
    key, value = draw(st.sampled_from(sorted(known_fields()))), draw(values)
    rest = "\n".join(line for line in text.splitlines() if not line.startswith(f"{key}:"))
    at, other = draw(st.integers(0, len(text) - 1)), draw(st.binary(max_size=2))
    spliced = text[:at].encode() + other + text[at + 1 :].encode()
    whole = draw(st.sampled_from(HOSTILE_TEXTS)).encode()
    one_value = f"{rest}\n{key}: {value}\n".encode()
    return draw(st.sampled_from((one_value, one_value, one_value, spliced, whole)))


@pytest.fixture
def outcomes(tmp_path, monkeypatch):
    """How many recipes resolved, and how many were refused. Reading them creates no file."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    load_recipe("grpo", "miniature")
    yield (counted := Counter())
    assert min(counted["resolved"], counted["refused"]) > 20
    assert list(Path().iterdir()) == []


@settings(derandomize=True, max_examples=100, suppress_health_check=[*HealthCheck])
@given(damaged(), st.sampled_from(PROFILES))
def test_a_damaged_recipe_resolves_or_ends_in_one_sentence(outcomes, content, profile):
    started = time.process_time()
    Path("../arm.yaml").write_bytes(content)
    try:
        resolved = load_recipe("../arm.yaml", profile)
    except ConfigurationError as error:
        outcomes["refused"] += 1
        assert str(error).isprintable() and 0 < len(str(error)) < 2000
    else:
        outcomes["resolved"] += 1
        for name, value in resolved.settings.items():
            plain = value.value if isinstance(value, Enum) else value
            assert accepts(known_fields()[name][1], plain), f"{name} is {value!r}"
        resolved.to_dict()
    assert time.process_time() - started < SECONDS
