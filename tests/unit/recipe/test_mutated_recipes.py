"""Damaged recipes: each resolves to values of the declared types, or is refused with a message.

A case is a shipped recipe, a mutation and a seed; the same number is the same case in every run.
"""

import random
import resource
import sys
import time
from enum import Enum
from pathlib import Path

import pytest

from trl_ablate import ConfigurationError, load_recipe
from trl_ablate.recipe.fields import known_fields
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.recipe.strict import accepts

ARMS = sorted(SHIPPED.glob("*.yaml"))
PROFILES = sorted(path.stem for path in (SHIPPED / "profiles").glob("*.yaml"))
CASES, PER_TEST, SECONDS = 1000, 100, 1.0
MEMORY_KIB = 100_000
"""More memory than that, with the largest valid case, shows that something was expanded."""

HOSTILE_VALUES = (
    "off", "~", "''", "0", "-1", "-0.0", "2.7", "1e999", "-1e308", "0x10", "010", "1_000", "'12'",
    ".inf", ".nan", "2026-01-01", "12:30:45", "9" * 25, "9" * 9000, "[]", "[a, [b]]", "[.nan]",
    "{}", "{a: {b: [c]}}", "{x: .inf}", "{1: 2}", "x" * 20_000, '"\\0"', '"\\ud800"', '"\\e[31m"',
    '"a\\nb"', '"\\u2028"', "\U0001f600", "\u0661\u0662", "\u202eabc", "../../../etc/passwd",
    "/dev/zero", "~root/x", "!!python/object/apply:os.system [echo]", "!!bool zzz", "!!set {a}",
    "!!timestamp 2026-13-45", "! x", "!!str [1]", "&a [*a]", "*nobody", "<<: 1",
    "|\n  block\n  text", "- item", "? key", "@x", "%x", "[" * 3000, "{" * 3000,
    "[" * 60 + "]" * 60, "[" + "1," * 60_000 + "1]", "text", "{a: text", "'open", "'{\"a\": 1}'",
)  # fmt: skip

HOSTILE_TEXTS: tuple[str | bytes, ...] = (
    "", "\t", "\ufeff", "null", "[]", "text", "--- a\n--- b\n", "%YAML 9.9\n---\na: 1", "\0",
    b"\xff\xfe\0", b"\x80abc", "a: 1\n" * 3, "\n".join(f"key{i}: {i}" for i in range(9000)),
    "#" * 190_000, "x" * 190_000, "'" * 100_000, "- " * 90_000, ": " * 90_000, "? " * 90_000,
    "&a " * 50_000, "a: &a [x]\nb: &b [*a,*a]\nc: [*b,*b,*b]\n", "a: &a {<<: *a}",
    "!!python/name:os.system", "a:\n" + "".join(" " * i + "a:\n" for i in range(1, 400)),
    "extends: ''", "extends: .", "extends: /dev/zero", "extends: " + "x" * 5000, "profile: ''",
    "profile: " + "x/" * 3000, "profile: .yaml", 'extends: "a\\nb"', '"a\\nb": 1',
    "'" + "k" * 5000 + "': 1",
)  # fmt: skip

WRONG_LETTERS = "\0\t\n:-[]{}#&*!|>'\"%@`,? 0aé\u2028\ufeff\x1b"


def mutated(text: str, key: str, draw: random.Random) -> str | bytes:
    """The recipe with something wrong, mostly about the setting `key`."""
    rest = "\n".join(line for line in text.splitlines() if not line.startswith(f"{key}:"))
    kind = draw.randrange(13)
    if kind < 7:  # another value
        others = [line.partition(": ")[2] for line in text.splitlines() if ": " in line]
        numbers = draw.randint(-(10**6), 10**6), draw.uniform(-2, 2), 10 ** draw.randint(2, 40)
        values = (*[HOSTILE_VALUES] * 4, others, *[numbers] * 2)[kind]
        return f"{rest}\n{key}: {draw.choice(values)}\n"
    if kind == 7:
        return f"{text}\n{key}: 1\n{key}: 1\n"
    if kind == 8:  # misspelt
        at = draw.randrange(len(key))
        other = draw.choice(("", "x", " ", "\u0430", "\t", "x" * 500))
        return f"{text}\n{key[:at]}{other}{key[at + 1 :]}: 1\n"
    if kind == 9:
        letters = list(text)
        for _ in range(draw.randint(1, 8)):
            letters[draw.randrange(len(letters))] = draw.choice(WRONG_LETTERS)
        return "".join(letters)
    if kind == 10:
        content = bytearray(text.encode())
        content[draw.randrange(len(content))] = draw.randrange(256)
        return bytes(content)
    return text[: draw.randrange(len(text))] if kind == 11 else draw.choice(HOSTILE_TEXTS)


def check_case(number: int, folder: Path) -> bool:
    """Load the recipe with that number; whether it resolved."""
    draw = random.Random(number)
    arm, key = draw.choice(ARMS), draw.choice(sorted(known_fields()))
    made = mutated(arm.read_text(encoding="utf-8"), key, draw)
    file = folder / "arm.yaml"
    file.write_bytes(made if isinstance(made, bytes) else made.encode())
    shown = f"case {number}: {key} in {arm.name}"
    started = time.process_time()
    try:
        resolved = load_recipe(file, draw.choice(PROFILES))
    except ConfigurationError as error:
        said = str(error)
        assert said and len(said.splitlines()) == 1 and len(said) < 2000, (shown, said[:3000])
        assert said.isprintable(), (shown, said)
        return False
    except Exception as error:
        raise AssertionError(f"{shown} ended in {type(error).__name__}") from error
    finally:
        taken = time.process_time() - started
        assert taken < SECONDS, f"{shown} took {taken:.1f} s"
    for name, value in resolved.settings.items():
        plain = value.value if isinstance(value, Enum) else value
        assert accepts(known_fields()[name][1], plain), f"{shown}: {name} is {value!r}"
    resolved.to_dict()
    return True


@pytest.mark.sample(2)
@pytest.mark.parametrize("start", range(0, CASES, PER_TEST))
def test_a_damaged_recipe_resolves_or_ends_in_one_sentence(start, tmp_path, monkeypatch):
    """Reading it creates no file."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    load_recipe("grpo", "miniature")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    resolved = sum(check_case(number, tmp_path) for number in range(start, start + PER_TEST))
    assert 0 < resolved < PER_TEST
    assert list((tmp_path / "here").iterdir()) == []
    if sys.platform == "linux":
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEMORY_KIB
