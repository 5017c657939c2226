"""Recipes: layers, strict reading, and the resolved settings of each shipped one."""

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trl_ablate import ConfigurationError, load_recipe
from trl_ablate.recipe.fields import LOADER_KEYS
from trl_ablate.recipe.places import SHIPPED, suitable_profile
from trl_ablate.recipe.resolving import resolve_run
from trl_ablate.recipe.strict import read_mapping
from trl_ablate.run.json_files import write_json
from trl_ablate.run.masking import MASK

ARMS = sorted(SHIPPED.glob("*.yaml"))
PROFILES = sorted(path.stem for path in (SHIPPED / "profiles").glob("*.yaml"))


@pytest.fixture
def write(tmp_path):
    """`write(name, text)` puts a recipe beside a small base."""

    def write(name: str, text: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    write("base.yaml", "learning_rate: 1e-5\nuse_cpu: true\nbf16: false\n")
    return write


@pytest.mark.sample(140)
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("arm", ARMS, ids=lambda path: path.stem)
def test_every_recipe_resolves_and_changes_what_it_declares(arm, profile):
    resolved = load_recipe(arm, profile=profile)
    declared = {key for key in read_mapping(arm, "recipe") if key not in LOADER_KEYS}
    reference = load_recipe("grpo", profile=profile)
    # TRL casts the model that continuous batching uses, and its updates are too small for that.
    lost = any("rounded away" in one for one in resolved.warnings)
    assert lost is (arm.stem == "continuous_batching" and not profile.startswith("miniature"))
    if arm.stem == "grpo":
        assert resolved.changes == {}
        return
    assert set(resolved.changes) == declared
    assert all(before != after for before, after in resolved.changes.values())
    derived = {"arm", "output_dir", "loss_type", "stop", "max_steps"}
    derived |= {"gradient_accumulation_steps", "reward_weights", "max_prompt_length"}
    ours, theirs = resolved.to_dict(), reference.to_dict()
    for group in ("config", "task", "model"):
        differing = {key for key in ours[group] if ours[group][key] != theirs[group].get(key)}
        assert differing <= declared | derived


@pytest.mark.parametrize("extends", [False, True])
def test_order_is_base_profile_recipe_command_line(write, extends):
    base = "learning_rate: 1.0\nepsilon: 1.0\nbeta: 1.0\nadvantage_eps: 1.0\n"
    write("base.yaml", base)
    machine = "use_cpu: true\nbf16: false\n"
    profile = write("here.yaml", f"{machine}epsilon: 2.0\nbeta: 2.0\nadvantage_eps: 2\n")
    recipe = write("arm.yaml", "extends: base.yaml\n" * extends + "beta: 3.0\nadvantage_eps: 3.0\n")
    resolved = load_recipe(recipe, str(profile), ["--advantage_eps", "4"])
    config = resolved.config
    assert (config.epsilon, config.beta, config.advantage_eps) == (2, 3, 4)
    assert (config.learning_rate == 1.0) is extends
    layers = {"epsilon": "profile here", "beta": "recipe arm.yaml", "advantage_eps": "command line"}
    layers |= {"learning_rate": "base base.yaml"} if extends else {}
    assert {key: resolved.layers.get(key) for key in layers} == layers


@pytest.mark.parametrize(
    ("recipe", "words", "expected"),
    [
        ("num_train_epochs: 2\n", [], (2, None, -1, 2)),
        ("extends: grpo.yaml\n", ["num_train_epochs=3"], (3, None, -1, 2)),
        ("max_steps: 5\n", ["grpo_steps=7"], (3, 7, 7, 2)),
        ("max_steps: 5\n", ["num_train_epochs=2", "grpo_steps=null"], (2, None, -1, 2)),
        ("num_train_epochs: 2\n", ["grpo_steps=7"], (2, 7, 7, 2)),
        ("max_steps: 5\n", [], (3, 60, 5, 2)),
        ("beta: 0.0\n", ["gradient_accumulation_steps=4"], (3, 60, 30, 4)),
        ("gradient_accumulation_steps: 4\n", ["optimizer_batch_size=64"], (3, 60, 120, 1)),
    ],
)
def test_a_lower_layer_does_not_leave_a_higher_one_without_effect(write, recipe, words, expected):
    found = load_recipe(write("arm.yaml", recipe), "miniature", words)
    config = found.config
    assert expected == (
        config.num_train_epochs, config.grpo_steps, config.max_steps,
        config.gradient_accumulation_steps,
    )  # fmt: skip
    assert found.layers.keys() <= found.settings.keys() | {"extends"}


@pytest.mark.parametrize("steps", [200, 199])
def test_the_shipped_base_is_under_the_profile_but_an_edited_copy_wins(write, steps):
    text = (SHIPPED / "grpo.yaml").read_text()
    copy = write("mine.yaml", text.replace("grpo_steps: 200", f"grpo_steps: {steps}"))
    resolved = load_recipe(copy, "miniature")
    assert resolved.config.grpo_steps == (60 if steps == 200 else 199)
    assert resolved.layers["grpo_steps"].startswith("profile" if steps == 200 else "recipe")


def test_evaluation_is_stocks_unless_a_recipe_or_an_older_record_has_ours(write):
    assert (
        load_recipe(write("own.yaml", "beta: 0.1\n"), "miniature").settings["evaluation"] == "trl"
    )
    resolved = load_recipe("grpo", "miniature").to_dict()
    assert resolved["settings"].pop("evaluation") == "one_shot"
    record = write("record.yaml", json.dumps(resolved, default=str))
    again = resolve_run(record)
    assert again.config.evaluation == "one_shot"
    assert again.config.eval_by == "level"


def test_an_accelerator_config_is_written_and_read_again(tmp_path):
    given = {"accelerator_config": {"even_batches": False}}
    write_json(tmp_path / "record", load_recipe("grpo", "miniature", given).to_dict())
    again: Any = resolve_run(tmp_path / "record").config.accelerator_config
    assert again.even_batches is False


def test_changes_are_against_the_base_and_a_learning_rate_is_scaled(write):
    text = "extends: base.yaml\nlearning_rate: 2e-5\nbeta: 0.1\nlearning_rate_scale: 4.0\n"
    resolved = load_recipe(write("arm.yaml", text), "miniature", ["--epsilon=0.3"])
    scaled = {"learning_rate_scale": (None, 4.0)}
    assert resolved.changes == {"learning_rate": (1e-5, 2e-5), "beta": (None, 0.1), **scaled}
    assert resolved.config.learning_rate == pytest.approx(8e-5)


def test_a_recipe_may_name_its_profile_and_the_caller_has_the_last_word():
    assert load_recipe("quickstart").profile == "miniature"
    assert load_recipe("quickstart", profile="h100").profile == "h100"
    assert load_recipe("grpo", overrides=["--profile", "h100"]).profile == "h100"


@pytest.mark.parametrize("layer", ["arm.yaml", "base.yaml"])
def test_the_profile_that_a_recipe_names_is_beside_it(write, layer, tmp_path, monkeypatch):
    write("here.yaml", "use_cpu: true\nbf16: false\nbeta: 0.3\n")
    for name in ("base.yaml", "arm.yaml"):
        extends = "extends: base.yaml\n" * (name == "arm.yaml")
        write(name, extends + ("profile: here.yaml\n" if name == layer else "epsilon: 0.1\n"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load_recipe(Path("../arm.yaml")).config.beta == 0.3
    asked = load_recipe(Path("../arm.yaml"), "here.yaml", {"epsilon": 0.2})
    assert (asked.profile, asked.config.beta) == ("here", 0.3)


@pytest.mark.parametrize(
    ("profile", "words", "said"),
    [
        ("extends: rtx4090.yaml", [], "'extends: rtx4090.yaml' is not read here"),
        ("profile: h100", [], "'profile: h100' is not read here"),
        ("beta: 0.1", ["--extends", "grpo.yaml"], "line: 'extends: grpo.yaml' is not read here"),
    ],
)
def test_what_only_a_recipe_says_is_refused_elsewhere(write, profile, words, said):
    here = write("here.yaml", f"use_cpu: true\nbf16: false\n{profile}\n")
    with pytest.raises(ConfigurationError, match=said):
        load_recipe("grpo", str(here), words)


@pytest.mark.parametrize(
    ("gigabytes", "expected"), [(None, "miniature"), (24, "rtx4090"), (48, "rtx4090"), (80, "h100")]
)
def test_auto_picks_by_gpu_memory(monkeypatch, gigabytes, expected):
    import torch

    card = SimpleNamespace(total_memory=(gigabytes or 0) * 2**30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gigabytes is not None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "a card")
    assert suitable_profile()[0] == expected


BAD_FILES = [
    ("beta: 0.1\nepsilon: 0.2\nbeta: 0.3", "'beta' occurs twice (again in line 3)"),
    ("extends: grop.yaml", "does not exist"),
    ("extends: arm.yaml", "extends itself"),
    ("# nothing\n", "is empty"),
    ("a: [1, 2", "is not valid YAML"),
    ("- a\n- b", "contains a list"),
    ("hello", "contains a str"),
    ("run_name: &x a\nproject: *x", "aliases"),
    ("1: 2", "the key 1 is not text"),
    ("run_name: !!python/object:os.system x", "tags (!name) are not allowed"),
    ("stop: [" + "a," * 9000 + "]", "more than 5000 keys and values"),
    ("beta: " + "9" * 400, "is too large a number"),
    ('run_name: "a\\0"', "'\\x00' in line 1 is not a readable character"),
    ('run_name: "\\ud800"', "'\\ud800' in line 1 is not a readable character"),
    ("extends: /dev/zero", "is not a regular file"),
    (b"run_name: \xff\xfe", "not UTF-8"),
    ("run_name: " + "x" * 300_000, "the limit is 200000"),
    ("stop: " + "[" * 60 + "]" * 60, "nested too deeply (more than 40 levels)"),
    ("stop: " + "[" * 5000, "nested too deeply"),
]
BAD_SETTINGS = [
    ("lerning_rate: 1e-5", "unknown key 'lerning_rate'; did you mean 'learning_rate'"),
    ("num_iterations: 2.7", "num_iterations is 2.7; it takes a whole number"),
    ("beta: much", "beta is the text 'much'; it takes a number"),
    ("beta: [0.1]", "beta is the list [0.1]; it takes a number"),
    ("run_name: 12", "run_name is 12; it takes text"),
    ("scale_rewards: false", "the boolean false; it takes one of group, batch, none"),
    ("num_iterations: true", "the boolean true; it takes a whole number"),
    ("log_completions: off", "'off'; it takes true or false"),
    ("baseline: mean", "one of group_mean, none, leave_one_out, batch_mean"),
    ("optim: sdg", "it takes one of"),
    ("beta: .inf", "beta is inf; it has to be a finite number"),
    ("reward_weights: [1.0, .nan]", "it has to be a finite number"),
    ("starts: {a: 1}", "starts is the mapping {'a': 1}; it takes a"),
    ("length_norm: mean\nloss_type: dapo", "built on loss_type 'grpo'"),  # of the class
    ("generation_batch_size: 100", "must be divisible"),  # of TRL
]


@pytest.mark.parametrize(
    ("text", "said"),
    [*BAD_FILES, *((f"extends: base.yaml\n{line}", said) for line, said in BAD_SETTINGS)],
    ids=range(len(BAD_FILES) + len(BAD_SETTINGS)),
)
def test_bad_recipes_end_in_one_sentence(write, text, said):
    with pytest.raises(ConfigurationError) as caught:
        load_recipe(write("arm.yaml", text), "miniature")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_base_extends_nothing_and_a_recipe_is_a_file(write, tmp_path):
    arm = write("arm.yaml", "extends: middle.yaml\nbeta: 0.2")
    for base, said in (("arm.yaml", "a circle"), ("base.yaml", "more than one level deep")):
        write("middle.yaml", f"extends: {base}\nbeta: 0.1")
        with pytest.raises(ConfigurationError, match=said):
            load_recipe(arm, "miniature")
    with pytest.raises(ConfigurationError, match="did you mean 'std_dev_off.yaml'"):
        load_recipe(SHIPPED / "std_dev_of.yaml")
    with pytest.raises(ConfigurationError, match="is a directory"):
        load_recipe(tmp_path)


def test_overriding_half_a_template_warns_with_both_names():
    half = load_recipe("grpo", "miniature", ["--stop", "END"])
    assert "END" in half.warnings[0] and "</answer>" in half.warnings[0]
    half = load_recipe("grpo", "miniature", ["--reward", "question_only"])
    assert "question_only" in half.warnings[0] and "r1_zero" in half.warnings[0]
    assert not load_recipe("grpo", "miniature").warnings


def test_the_engine_s_length_limits_prompts():
    """2048 tokens of context minus 1024 tokens of completion."""
    grpo = SHIPPED / "grpo.yaml"
    assert load_recipe(grpo, "h100").task.max_prompt_length == 1024
    assert load_recipe(grpo, "h100", {"max_prompt_length": 300}).task.max_prompt_length == 300
    assert load_recipe(grpo, "h100", {"use_vllm": False}).task.max_prompt_length is None
    assert load_recipe(grpo, "miniature").task.max_prompt_length is None
    with pytest.raises(ConfigurationError) as raised:
        load_recipe(grpo, "h100", {"max_prompt_length": 1500})
    for said in ("max_prompt_length 1500", "max_completion_length 1024", "length 2048"):
        assert said in str(raised.value)


LOW_RATES = {"learning_rate": 1e-6}


@pytest.mark.parametrize(
    ("profile", "settings", "warned"),
    [
        ("rtx4090", LOW_RATES, False),
        ("rtx4090", {}, False),
        ("h100", {"dtype": "bfloat16"}, True),
        ("h100", {"dtype": "auto"}, True),
        ("h100", {"dtype": "bfloat16", "learning_rate": 1e-4}, False),
        ("h100", {"dtype": "float16"}, False),
        ("h100", {"dtype": "float16", **LOW_RATES}, True),
        ("h100", {"model_init_kwargs": {"dtype": "bfloat16"}}, True),
        ("h100", {"dtype": "bfloat16", "use_peft": True}, False),
        ("h100", {"load_in_4bit": True, "use_peft": True}, True),
        ("h100", {"use_vllm": False, "use_transformers_continuous_batching": True, "min_tokens": 0},
         True),
        ("h100", {"dtype": "bfloat16", "optim": "sgd"}, False),
        ("miniature", LOW_RATES, False),
    ],
)  # fmt: skip
def test_updates_too_small_for_the_weights_are_warned_about(profile, settings, warned):
    found = load_recipe("grpo", profile, settings).warnings
    assert [w for w in found if "most updates are rounded away" in w] == found
    assert bool(found) is warned


def test_tokens_are_masked_in_what_is_written():
    secret = "hf_" + "x" * 30
    given = {"hub_token": secret, "model_init_kwargs": {"token": "another"}, "stop": ["eos_token"]}
    written = load_recipe("grpo", "miniature", given).to_dict()
    assert secret not in str(written) and "another" not in str(written)
    assert written["settings"]["hub_token"] == MASK
    assert written["settings"]["stop"] == ["eos_token"]


def test_a_start_is_looked_up_in_the_profile():
    from trl_ablate.training.models import starting_point

    starts = {"miniature": "miniature/chains", "h100": "google/gemma-3-270m-it"}
    for profile, expected in starts.items():
        assert starting_point(load_recipe("gemma3_270m", profile)) == expected
    absent = load_recipe("grpo", "miniature", ["--start", "sft_late"])
    with pytest.raises(ConfigurationError, match="no such entry in starts"):
        starting_point(absent)


def test_named_evaluation_sets_give_metrics_that_can_be_the_best():
    sets = "{gsm8k: gsm8k, mine: questions.jsonl}"
    words = ["--eval_sets", sets, "--best_metric", "eval_mine_pass@4", "--num_generations_eval", 4]
    task = load_recipe("grpo", "miniature", map(str, words)).to_dict()["task"]
    assert task["eval_sets"] == {"gsm8k": "gsm8k", "mine": "questions.jsonl"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"best_metric": "eval_rewards"}, "did you mean 'eval_reward'"),
        ({"best_metric": "eval_pass@4"}, "is not a metric of this evaluation"),
        ({"eval_sets": {"mine": "a.jsonl"}, "best_metric": "eval_our_reward"}, "not a metric of"),
        (
            {"evaluation": "trl", "num_generations_eval": 4, "best_metric": "eval_pass@4"},
            "best_metric 'eval_pass@4' needs evaluation 'one_shot', but evaluation is 'trl'",
        ),
        ({"evaluation": "trl", "best_metric": "eval_mean_length"}, "needs evaluation 'one_shot'"),
        ({"eval_sets": {"answer": "a.jsonl"}}, "the metric 'eval_answer_reward' twice"),
        ({"eval_sets": {"my set": "a.jsonl"}}, "eval_sets has 'my set'"),
        ({"eval_sets": {"mine": 3}}, "{'mine': 3}; it takes a mapping .text or a mapping each."),
        ({"eval_sets": {"mine": ""}}, "eval_sets has 'mine': ''"),
        ({"outcome_gate": "answer"}, "'answer', but the reward functions are r1_zero; name one"),
        ({"outcome_gate": "x", "eos_penalty": 1.0}, "functions are r1_zero, eos_penalty; name one"),
        ({"reward_noise": 0.1, "eos_penalty": 1.0}, "set eos_penalty to 0, or outcome_gate to r1"),
        ({"reward_noise": 0.1, "eos_penalty": 1.0, "outcome_gate": "r1_zero"}, None),
    ],
)
def test_metrics_and_rewards_that_a_setting_names_have_to_be_there(settings, said):
    with pytest.raises(ConfigurationError, match=said) if said else nullcontext():
        load_recipe("grpo", "miniature", settings)
