"""The miniature without training: sums, corpus, tokenizer, lessons, cache key."""

import ast
import hashlib
import json
from functools import partial
from itertools import islice

import pytest

from trl_ablate import miniature
from trl_ablate.miniature import cache, corpus
from trl_ablate.miniature.tokens import TAGS
from trl_ablate.miniature.world import Lesson
from trl_ablate.miniature.worlds.sums import SUMS

problems = partial(miniature.problems, world="sums")
TEXTS = list(islice(corpus.corpus(SUMS, seed=3), 500))


@pytest.fixture(scope="module")
def tokenizer():
    return miniature.tokenizer("sums")


def test_a_seed_shuffles_and_a_longer_list_begins_with_the_shorter_one():
    once = problems("validation", 64, seed=1)
    assert once[:30] == problems("validation", 30, seed=1)
    assert once != problems("validation", 64, seed=2)


def test_too_many_problems_or_an_unknown_split_are_refused_by_name():
    with pytest.raises(ValueError, match="size is 99999; the validation set of sums has"):
        problems("validation", 99_999)
    with pytest.raises(ValueError, match="split is 'test'; allowed are 'train' and 'validation'"):
        problems("test", 1)  # pyright: ignore[reportArgumentType]


def test_the_corpus_survives_the_tokenizer(tokenizer):
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items())).encode()
    assert hashlib.sha256(vocabulary).hexdigest()[:16] == "244c54fc45cfdff3"  # in every run
    for text in TEXTS:
        for string in (corpus.prompt(text, tokenizer), text.completion):
            assert tokenizer.decode(tokenizer(string).input_ids) == string
    string = "Grüße, 世界! \t{x_1} <b>\n\\frac{1}{2}"
    assert tokenizer.decode(tokenizer(string).input_ids) == string


def test_the_tokens_of_digits_tags_and_turns(tokenizer):
    assert len(tokenizer("90210").input_ids) == 5
    for tag in TAGS:
        ids = tokenizer(tag).input_ids
        assert len(ids) == 1
        assert tokenizer.decode(ids, skip_special_tokens=True) == tag
    assert tokenizer("1<|end|>").input_ids[-1] == tokenizer.eos_token_id != tokenizer.pad_token_id
    turns = [{"role": role, "content": role[0]} for role in ("system", "user", "assistant")]
    asked = tokenizer.apply_chat_template(turns[:2], tokenize=False, add_generation_prompt=True)
    assert asked == "<|system|>s<|user|>u<|assistant|>"
    assert tokenizer.apply_chat_template(turns, tokenize=False) == f"{asked}a<|end|>"


def test_auto_tokenizer_reads_it_back_the_same(tokenizer, tmp_path):
    from transformers import AutoTokenizer, Qwen2Config

    tokenizer.save_pretrained(tmp_path)
    Qwen2Config().save_pretrained(tmp_path)  # decides which class AutoTokenizer takes
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again.get_vocab() == tokenizer.get_vocab()
    assert again.padding_side == "left"
    for text in TEXTS[:100]:
        string = corpus.prompt(text, tokenizer) + text.completion
        assert again(string).input_ids == tokenizer(string).input_ids


def test_a_lesson_warms_up_and_cools_down():
    lesson = Lesson(steps=100, texts_per_step=1, matrix_rate=1, other_rate=1, warmup=10)
    factors = [lesson.rate_factor(step) for step in range(100)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[9:61] == [1.0] * 52
    assert factors[-1] == pytest.approx(1 / 40)
    flat = Lesson(3, 1, 1, 1, warmup=0, cooldown_share=0.0)
    assert [flat.rate_factor(step) for step in range(3)] == [1.0] * 3


def test_every_python_computes_the_same_key():
    """Versions differ in how they write an f-string with quotes inside its braces."""
    folder = cache.SHIPPED.parent
    for file in {*folder.rglob("*.py")} - {folder / name for name in cache.KEEPERS}:
        for node in ast.walk(ast.parse(file.read_text())):
            written = ast.unparse(node.value) if isinstance(node, ast.FormattedValue) else ""
            assert not {"'", '"'} & set(written), f"{file.name}: take {written} out of the braces"


@pytest.mark.parametrize("world", ["chains", "chains-hard", "formats", "sums"])
def test_a_base_comes_with_the_package(world):
    shipped = cache.SHIPPED / world / f"base-{miniature.cache_key(world)}"
    assert [each.name for each in (cache.SHIPPED / world).iterdir()] == [shipped.name], (
        "the code that makes the base has changed: build it, and move it there (README.md)"
    )
    assert miniature.build(world=world) == shipped


def test_the_cache_key_follows_the_prompts_the_model_reads(monkeypatch):
    before = miniature.cache_key()
    assert before == miniature.cache_key()
    monkeypatch.setattr(cache, "prompt_text", lambda name, style: f"changed {name}")
    assert miniature.cache_key() != before


SOURCE = """\
\"\"\"How it is made.\"\"\"

import os

RATE = 0.02  # a guess
\"\"\"Of the matrices.\"\"\"


def teach(steps=240):
    \"\"\"Teach.\"\"\"
    from math import pi

    return os.getpid() * pi * steps
"""


@pytest.fixture
def key_of(monkeypatch, tmp_path):
    """`key_of(source)`: the cache key of a package whose only module has this source."""

    def key(source: str, name: str = "teaching.py") -> str:
        for file in tmp_path.iterdir():
            file.unlink()
        (tmp_path / name).write_text(source)
        return miniature.cache_key()

    monkeypatch.setattr(cache.resources, "files", lambda package: tmp_path)
    return key


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("import os\n", "import os\nimport sys\n", True),
        ("from math import pi", "from cmath import pi", True),
        ("How it is made.", "How the model is made.", True),
        ("Of the matrices.", "Of the matrices only.", True),
        ('    """Teach."""\n', "", True),
        ("  # a guess", "  # tried", True),
        ("RATE = 0.02", "RATE  =  (0.02)", True),
        ("0.02", "0.03", False),
        ("240", "241", False),
        ("* steps", "+ steps", False),
        ("RATE", "RATES", False),
    ],
)
def test_the_cache_key_follows_the_code_and_not_its_words_or_imports(key_of, old, new, same):
    assert old in SOURCE
    assert (key_of(SOURCE) == key_of(SOURCE.replace(old, new))) is same
    assert key_of(SOURCE) != key_of(SOURCE, "schooling.py")
    assert key_of(SOURCE, "cache.py") == key_of("", "registry.py")  # they only keep models


def test_where_the_cache_lies(monkeypatch, tmp_path):
    monkeypatch.delenv("TRL_ABLATE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for variable, below in (
        ("HOME", ".cache/trl_ablate"),
        ("XDG_CACHE_HOME", "trl_ablate"),
        ("TRL_ABLATE_CACHE", ""),
    ):
        monkeypatch.setenv(variable, str(tmp_path / variable))
        assert cache.default_cache_dir() == tmp_path / variable / below


def test_an_unknown_stage_is_refused_by_name():
    with pytest.raises(ValueError, match="stage is 'sft_late'; allowed are base, sft_early"):
        miniature.build("sft_late")  # pyright: ignore[reportArgumentType]
