"""Words of a command line: text stays unchanged, and every value can be written as words."""

import json

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from trl_ablate import ConfigurationError, load_recipe
from trl_ablate.recipe.fields import checked, known_fields
from trl_ablate.recipe.overrides import as_words, read_overrides
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.recipe.strict import read_mapping
from trl_ablate.study.definition import load_study
from trl_ablate.study.resolution import resolve_plan

ODD = (
    "[/INST]", "[a, b]", '["a"]', '["a", "b"]', '"["a"]"', "[]", "#x", "a #x", "- x", "? x", "a: b",
    "{a: 1}", "{a", "null", '"null"', '""null""', "~", "Null", "true", "off", "1", "1e5", ".nan",
    "😀", "é", "\u2028", "\ufeff", "\n", "\t", " a ", "", "'", '"', '"a"', "\\n", "\\ud83d\\ude00",
    "&a", "*a", "!x", "%a", "@", "`", "|", ">", "--seed", "--seed=1", "seed=1", "-1", "=", "</s>",
)  # fmt: skip

texts = st.one_of(
    st.sampled_from(ODD),
    st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=12),
)
lists = st.lists(texts, max_size=3)


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
    for word in ("a\0", "\udcff", "\x1b[31m"):
        with pytest.raises(ConfigurationError, match="--run_name .* is not a readable character"):
            read_overrides(["--run_name", word])
    with pytest.raises(ConfigurationError, match="it takes text or null"):
        read_overrides(["--run_name", "my", "run"])


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


def test_a_study_hands_texts_on_as_they_are(tmp_path):
    texts = [text for text in ODD if text]
    values = {"stop": texts, "project": "null", "vllm_structured_outputs_regex": "null"}
    study = {"question": "q", "arms": ["grpo.yaml"], "seeds": [0], "profile": "miniature"}
    file = tmp_path / "study.yaml"
    file.write_text(json.dumps({**study, "overrides": values}), encoding="utf-8")
    words = resolve_plan(load_study(file)).arms[0].runs[0].words
    assert read_overrides(words[1:]).items() >= values.items()
    found = load_recipe("grpo", "miniature", as_words(values)).settings
    assert {key: found[key] for key in values} == values


def test_every_setting_has_words():
    """Every resolved setting of a shipped recipe can be given on a command line."""
    for recipe in sorted(SHIPPED.glob("*.yaml")):
        given = read_mapping(recipe, "recipe")
        given = checked({k: v for k, v in given.items() if k in known_fields()}, recipe)
        assert read_overrides(as_words(given)) == given
