"""Words of a command line: text stays unchanged, and every value can be written as words."""

import json

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from trl_ablate import ConfigurationError
from trl_ablate.recipe.fields import checked
from trl_ablate.recipe.overrides import as_words, read_overrides
from trl_ablate.recipe.strict import read_mapping

WORDS = [
    (["--learning_rate=2e-5"], 2e-5), (["learning_rate=2e-5"], 2e-5),
    (["--num_iterations", "3"], 3), (["--log_completions"], True),
    (["--log_completions", "false"], False), (["--reward_weights", "1", "2.5"], [1.0, 2.5]),
    (["--surrogate", "null"], None), (["--generation_kwargs", "{top_k: 3}"], {"top_k": 3}),
    (["--stop", "1", "2"], ["1", "2"]), (["--stop", "[/INST]"], ["[/INST]"]),
    (["--stop", "[a, b]"], ["[a, b]"]), (["--stop", '["a", "b"]'], ["a", "b"]),
    (["--stop", '"[\\"a\\"]"'], ['["a"]']), (["--stop", '["a"]', "b"], ['["a"]', "b"]),
    (["--stop", "null"], None), (["--stop", '"null"'], ["null"]), (["--stop", "~"], ["~"]),
    (["--stop", "[]"], []), (["--subjects="], [""]), (["--run_name", "123"], "123"),
    (["--run_name", "null"], None), (["--run_name", '"null"'], "null"),
    (["--run_name", '"a"'], "a"), (["--run_name", '"a'], '"a'), (["--project", "null"], "null"),
    (["--report_to", "trackio", "wandb"], ["trackio", "wandb"]), (["--report_to", "none"], "none"),
    (["--trackio_static_space_id", "false"], False),
]  # fmt: skip


@pytest.mark.parametrize(("words", "value"), WORDS)
def test_a_word_for_a_text_is_that_text(words, value):
    name = words[0].removeprefix("--").partition("=")[0]
    assert read_overrides(words) == {name: value}


def test_words_that_are_no_text_are_refused():
    for word in "\0\udcff\x1b":
        with pytest.raises(ConfigurationError, match="--run_name .* is not a readable character"):
            read_overrides(["--run_name", word])
    for words in (["--run_name", "my", "run"], ["--run_name"]):
        with pytest.raises(ConfigurationError, match="it takes text or null"):
            read_overrides(words)


ODD = (
    "[/INST]", "[a, b]", '["a"]', '"["a"]"', "[]", "a #x", "- x", "? x", "a: b", "{a: 1}", "{a",
    "null", '"null"', '""null""', "~", "true", "off", "1", "1e5", ".nan", "😀", "\u2028", "\ufeff",
    "\n", "\t", " a ", "", "'", '"', '"a"', "\\n", "\\ud83d\\ude00", "&a", "!x", "%a", "@", "`",
    "|", "--seed", "--seed=1", "seed=1", "-1", "=", "</s>",
)  # fmt: skip
texts = st.sampled_from(ODD) | st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=12)
lists = st.lists(texts, max_size=3)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(("run_name", "vllm_structured_outputs_regex"), st.none() | texts),
            "project": texts,
            **dict.fromkeys(("lora_target_modules", "subjects"), st.none() | lists),
            "stop": st.none() | st.lists(texts.filter(bool), max_size=3),
            "optim_target_modules": st.none() | texts | lists,
            "eval_sets": st.none() | st.dictionaries(texts, texts, max_size=2),
            "learning_rate": st.floats(0, 1, allow_subnormal=False),
            "seed": st.integers(0, 2**32 - 1),
            "bf16": st.none() | st.booleans(),
        },
    )
)
@example({"stop": ["😀"]})
@example({"eval_sets": {"😀": "\u2028"}})
def test_words_and_recipe_give_the_same_values(tmp_path, values):
    assert read_overrides(as_words(values)) == values
    file = tmp_path / "arm.yaml"
    file.write_text(json.dumps(values), encoding="utf-8")
    assert checked(read_mapping(file, "recipe"), file) == values
