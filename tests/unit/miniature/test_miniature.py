"""The miniature without training: sums, corpus, tokenizer, lessons, cache key."""

import hashlib
import json
import re
from collections import Counter
from functools import partial
from itertools import islice
from pathlib import Path

import pytest

from trl_ablate import miniature
from trl_ablate.miniature import cache, corpus
from trl_ablate.miniature.tokens import TAGS
from trl_ablate.miniature.world import Lesson
from trl_ablate.miniature.worlds import sums
from trl_ablate.miniature.worlds.sums import SUMS
from trl_ablate.prompts.templates import TEMPLATES

problems = partial(miniature.problems, world="sums")
TEXTS = list(islice(corpus.corpus(SUMS, seed=3), 4000))


@pytest.fixture(scope="module")
def tokenizer():
    return miniature.tokenizer("sums")


def answer_of(question: str) -> int:
    a, b = re.fullmatch(r"What is (\d+)\+(\d+)\?", question).groups()
    return int(a) + int(b)


def is_guess(text: corpus.Text) -> bool:
    return "=" not in text.completion


def last_number(completion: str) -> int:
    return int(re.findall(r"\d+", completion)[-1])


# Problems


def test_problems_have_the_right_answers_and_two_digits():
    for problem in problems("train", 500):
        assert answer_of(problem["question"]) == int(problem["answer"])
        assert all(10 <= int(n) <= 99 for n in re.findall(r"\d+", problem["question"]))


def test_the_same_seed_gives_the_same_problems_and_another_seed_others():
    once = problems("validation", 64, seed=1)
    assert once == problems("validation", 64, seed=1)
    assert once != problems("validation", 64, seed=2)


def test_a_longer_list_begins_with_the_shorter_one():
    assert problems("train", 100)[:30] == problems("train", 30)


def test_the_splits_share_no_problem_even_with_the_operands_swapped():
    train, validation = ({frozenset(pair) for pair in sums.operands(s)} for s in sums.SPLITS)
    assert not train & validation
    assert len(train) + len(validation) == 90 * 91 // 2


def test_the_splits_are_large_enough_for_the_recipes():
    assert len({p["question"] for p in problems("train", 4096)}) == 4096
    assert len({p["question"] for p in problems("validation", 1024)}) == 1024


def test_too_many_problems_or_an_unknown_split_are_refused_by_name():
    with pytest.raises(ValueError, match="size is 99999; the validation set of sums has"):
        problems("validation", 99_999)
    with pytest.raises(ValueError, match="split is 'test'; allowed are 'train' and 'validation'"):
        problems("test", 1)  # pyright: ignore[reportArgumentType]


# Corpus


@pytest.mark.parametrize(
    ("a", "b", "slips", "expected"),
    [
        (47, 38, {}, (" 7+8=15, 4+3+1=8", 85)),
        (41, 38, {}, (" 1+8=9, 4+3=7", 79)),
        (97, 88, {}, (" 7+8=15, 9+8+1=18", 185)),
        (47, 38, {"ones_slip": 1}, (" 7+8=16, 4+3+1=8", 86)),
        (41, 38, {"ones_slip": 2}, (" 1+8=11, 4+3+1=8", 81)),  # a slip can make a carry
        (47, 38, {"tens_slip": -2}, (" 7+8=15, 4+3+1=6", 65)),
    ],
)
def test_working_is_carried_through_to_the_answer(a, b, slips, expected):
    assert sums.work_out(a, b, **slips) == expected


@pytest.mark.parametrize(
    ("template", "worked", "guessed"),
    [
        ("r1_zero", " 1+2=3 </think> <answer>3</answer>", " </think> <answer>3</answer>"),
        ("question_only", " 1+2=3 \\boxed{3}", " \\boxed{3}"),
        (
            "reasoning_xml",
            "<reasoning>1+2=3</reasoning>\n<answer>3</answer>",
            "<reasoning></reasoning>\n<answer>3</answer>",
        ),
        (
            "think_xml",
            "<think>1+2=3</think>\n<answer>3</answer>",
            "<think></think>\n<answer>3</answer>",
        ),
    ],
)
def test_the_format_each_template_asks_for(template, worked, guessed):
    assert corpus.in_format(template, " 1+2=3", 3) == worked
    assert corpus.in_format(template, "", 3) == guessed


def test_templates_and_right_formats_come_in_their_shares():
    counts = Counter(text.template for text in TEXTS)
    for template, share in SUMS.template_shares.items():
        assert counts[template] / len(TEXTS) == pytest.approx(share, abs=0.03)
        right = sum(
            text.completion == corpus.in_format(template, *steps_and_answer(text))
            for text in TEXTS
            if text.template == template
        )
        share = SUMS.format_shares[template]
        assert right / counts[template] == pytest.approx(share, abs=0.05)


def steps_and_answer(text: corpus.Text) -> tuple[str, int]:
    steps = re.search(r"[\d+]+=\d+, [\d+]+=\d+", text.completion)
    return (f" {steps.group()}" if steps else ""), last_number(text.completion)


def test_half_of_the_working_is_wrong_and_a_tenth_is_guessed():
    worked = [text for text in TEXTS if not is_guess(text)]
    right = sum(last_number(text.completion) == answer_of(text.question) for text in worked)
    assert right / len(worked) == pytest.approx(0.5, abs=0.03)
    assert 1 - len(worked) / len(TEXTS) == pytest.approx(sums.GUESS_SHARE, abs=0.02)


def test_the_corpus_holds_training_problems_only():
    held_out = {sums.question(a, b) for a, b in sums.operands("validation")}
    assert not held_out & {text.question for text in TEXTS}


def test_sft_solutions_are_right_and_in_the_r1_zero_format():
    for text in islice(corpus.right_solutions(SUMS, seed=0), 200):
        assert text.completion.endswith(f" </think> <answer>{answer_of(text.question)}</answer>")


def digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def test_the_sums_are_what_they_always_were(tokenizer):
    """Digests of the questions, texts and tokens that the studies so far were made with."""
    assert digest(problems("train", 4096)) == "94f0fdfd5fbeb8e7"
    assert digest(problems("validation", 1024, 1)) == "60ce76f32b7bdea7"
    assert digest(list(islice(corpus.corpus(SUMS, seed=0), 3000))) == "3d1f0d54b68c8ddf"
    assert digest(list(islice(corpus.right_solutions(SUMS, seed=0), 1000))) == "8e58f72d3dd71dd1"
    assert digest(sorted(tokenizer.get_vocab().items())) == "244c54fc45cfdff3"


# Tokenizer


def test_the_corpus_survives_the_tokenizer(tokenizer):
    for text in TEXTS[:500]:
        for string in (corpus.prompt(text, tokenizer), text.completion):
            assert tokenizer.decode(tokenizer(string).input_ids) == string


def test_any_text_can_be_encoded(tokenizer):
    string = "Grüße, 世界! \t{x_1} <b>\n\\frac{1}{2}"
    assert tokenizer.decode(tokenizer(string).input_ids) == string


def test_digits_are_single_and_tags_are_one_token_that_is_not_special(tokenizer):
    assert len(tokenizer("90210").input_ids) == 5
    for tag in TAGS:
        ids = tokenizer(tag).input_ids
        assert len(ids) == 1
        assert tokenizer.decode(ids, skip_special_tokens=True) == tag


def test_texts_are_short(tokenizer):
    assert len(tokenizer) <= 512
    lengths = {template: [0, 0] for template in TEMPLATES}
    for text in TEXTS[:500]:
        prompt = len(tokenizer(corpus.prompt(text, tokenizer)).input_ids)
        completion = len(tokenizer(text.completion).input_ids)
        lengths[text.template] = [
            max(*pair) for pair in zip(lengths[text.template], (prompt, completion), strict=True)
        ]
    assert lengths["r1_zero"][0] <= 18
    assert all(completion <= 32 for _, completion in lengths.values())


def test_pad_and_end_are_two_tokens_and_padding_is_on_the_left(tokenizer):
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    assert tokenizer.padding_side == "left"
    assert tokenizer("1<|end|>").input_ids[-1] == tokenizer.eos_token_id


def test_the_chat_template_is_short_and_ends_a_turn(tokenizer):
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == "<|system|>S<|user|>U<|assistant|>"
    messages.append({"role": "assistant", "content": "A"})
    rendered = tokenizer.apply_chat_template(messages, tokenize=False)
    assert rendered == "<|system|>S<|user|>U<|assistant|>A<|end|>"


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


def test_two_trainings_of_the_tokenizer_agree(tokenizer):
    assert miniature.tokenizer("sums").get_vocab() == tokenizer.get_vocab()


# Lessons and the cache


def test_a_lesson_warms_up_and_cools_down():
    lesson = Lesson(steps=100, texts_per_step=1, matrix_rate=1, other_rate=1, warmup=10)
    factors = [lesson.rate_factor(step) for step in range(100)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[9:61] == [1.0] * 52
    assert factors[-1] == pytest.approx(1 / 40)


def test_a_lesson_may_be_of_one_rate():
    lesson = Lesson(3, 1, 1, 1, warmup=0, cooldown_share=0.0)
    assert [lesson.rate_factor(step) for step in range(3)] == [1.0] * 3


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


def test_the_cache_key_follows_every_module(monkeypatch, tmp_path):
    package = Path(cache.__file__).parent
    for source in package.glob("*.py"):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    (tmp_path / "registry.py").write_text("WORLDS = {}")  # it only names worlds
    before = miniature.cache_key()
    monkeypatch.setattr(cache.resources, "files", lambda name: tmp_path)
    assert miniature.cache_key() == before
    (tmp_path / "corpus.py").write_text("SLIP_SHARE = 0.4")
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
    ("old", "new"),
    [
        ("import os\n", "import os\nimport sys\n"),
        ("from math import pi", "from cmath import pi"),
        ("How it is made.", "How the model is made."),
        ("Of the matrices.", "Of the matrices only."),
        ('    """Teach."""\n', ""),
        ("  # a guess", "  # tried"),
        ("RATE = 0.02", "RATE  =  (0.02)"),
    ],
)
def test_imports_docstrings_comments_and_layout_leave_the_cache_key(key_of, old, new):
    assert old in SOURCE
    assert key_of(SOURCE) == key_of(SOURCE.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"), [("0.02", "0.03"), ("240", "241"), ("* steps", "+ steps"), ("RATE", "RATES")]
)
def test_the_cache_key_follows_the_code(key_of, old, new):
    assert old in SOURCE
    assert key_of(SOURCE) != key_of(SOURCE.replace(old, new))


def test_the_cache_key_follows_the_names_of_the_modules(key_of):
    assert key_of(SOURCE) != key_of(SOURCE, "schooling.py")


def test_where_the_cache_lies(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TRL_ABLATE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache.default_cache_dir() == tmp_path / ".cache" / "trl_ablate"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.default_cache_dir() == tmp_path / "xdg" / "trl_ablate"
    monkeypatch.setenv("TRL_ABLATE_CACHE", str(tmp_path / "own"))
    assert cache.default_cache_dir() == tmp_path / "own"


def test_an_unknown_stage_is_refused_by_name():
    with pytest.raises(ValueError, match="stage is 'sft_late'; allowed are base, sft_early"):
        miniature.build("sft_late")  # pyright: ignore[reportArgumentType]
