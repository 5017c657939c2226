"""Recipes: their layers and profiles, and the resolved settings of each shipped one."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from trl_ablate import ConfigurationError, load_recipe
from trl_ablate.recipe.fields import LOADER_KEYS
from trl_ablate.recipe.places import SHIPPED, suitable_profile
from trl_ablate.recipe.resolving import resolve_run
from trl_ablate.recipe.strict import read_mapping
from trl_ablate.training.machine import starting_point

ARMS = sorted(path for path in SHIPPED.glob("*.yaml") if path.stem != "grpo")
PROFILES = sorted(path.stem for path in (SHIPPED / "profiles").glob("*.yaml"))
MACHINE = "use_cpu: true\nbf16: false\n"


@pytest.fixture
def write(tmp_path):
    """`write(name, text)` puts a recipe beside a small base."""

    def write(name: str, text: str) -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    write("base.yaml", f"learning_rate: 1e-5\n{MACHINE}")
    return write


@pytest.mark.parametrize("profile", PROFILES)
def test_every_recipe_resolves_and_changes_what_it_declares(profile):
    base = load_recipe("grpo", profile)
    assert base.changes == {}
    derived = {"arm", "output_dir", "loss_type", "stop", "max_steps", "max_prompt_length"}
    derived |= {"gradient_accumulation_steps", "reward_weights"}
    for arm in ARMS:
        resolved = load_recipe(arm, profile)
        declared = {key for key in read_mapping(arm, "recipe") if key not in LOADER_KEYS}
        assert set(resolved.changes) == declared, arm
        assert all(before != after for before, after in resolved.changes.values()), arm
        ours, theirs = resolved.all_settings(), base.all_settings()
        assert {key for key in ours if ours[key] != theirs[key]} <= declared | derived, arm
        # TRL casts the model that continuous batching uses, and its updates are too small for that
        lost = any("rounded away" in one for one in resolved.warnings)
        cast = arm.stem == "continuous_batching" and not profile.startswith("miniature")
        assert lost is cast, arm


# Layers


def test_an_arm_and_a_folder_of_null_have_the_name_of_the_recipe():
    words = ["--arm", "null", "--output_dir", "null", "--seed", "3"]
    config = load_recipe("grpo", "miniature", words).config
    assert (config.arm, config.output_dir) == ("grpo", "runs/grpo-seed3")


@pytest.mark.parametrize("extends", [False, True])
def test_order_is_base_profile_recipe_command_line(write, extends):
    write("base.yaml", "learning_rate: 1.0\nepsilon: 1.0\nbeta: 1.0\nadvantage_eps: 1.0\n")
    profile = write("here.yaml", f"{MACHINE}epsilon: 2.0\nbeta: 2.0\nadvantage_eps: 2\n")
    recipe = write("arm.yaml", "extends: base.yaml\n" * extends + "beta: 3.0\nadvantage_eps: 3.0\n")
    resolved = load_recipe(recipe, str(profile), ["--advantage_eps", "4"])
    config = resolved.config
    assert (config.epsilon, config.beta, config.advantage_eps) == (2, 3, 4)
    assert (config.learning_rate == 1.0) is extends
    layers = {"epsilon": "profile here", "beta": "recipe arm.yaml", "advantage_eps": "command line"}
    layers |= {"learning_rate": "base base.yaml"} if extends else {}
    assert layers.items() <= resolved.layers.items()


@pytest.mark.parametrize(
    ("recipe", "words", "expected"),
    [
        ("num_train_epochs: 2\n", [], (2, None, -1, 2)),
        ("extends: grpo.yaml\n", ["num_train_epochs=3"], (3, None, -1, 2)),
        ("max_steps: 5\n", ["grpo_steps=7"], (3, 7, 7, 2)),
        ("max_steps: 5\n", ["num_train_epochs=2", "grpo_steps=null"], (2, None, -1, 2)),
        ("max_steps: 5\n", [], (3, 60, 5, 2)),
        ("beta: 0.0\n", ["gradient_accumulation_steps=4"], (3, 60, 30, 4)),
        ("gradient_accumulation_steps: 4\n", ["optimizer_batch_size=64"], (3, 60, 120, 1)),
    ],
)
def test_a_lower_layer_does_not_leave_a_higher_one_without_effect(write, recipe, words, expected):
    found = load_recipe(write("arm.yaml", recipe), "miniature", words)
    of = vars(found.config)
    lengths = ("num_train_epochs", "grpo_steps", "max_steps", "gradient_accumulation_steps")
    assert tuple(of[name] for name in lengths) == expected
    assert found.layers.keys() <= found.settings.keys() | {"extends"}


@pytest.mark.parametrize("steps", [200, 199])
def test_the_shipped_base_is_under_the_profile_but_an_edited_copy_wins(write, steps):
    text = (SHIPPED / "grpo.yaml").read_text()
    copy = write("mine.yaml", text.replace("grpo_steps: 200", f"grpo_steps: {steps}"))
    resolved = load_recipe(copy, "miniature")
    assert resolved.config.grpo_steps == (60 if steps == 200 else 199)
    assert resolved.layers["grpo_steps"].startswith("profile" if steps == 200 else "recipe")


def test_changes_are_against_the_base_and_a_learning_rate_is_scaled(write):
    text = "extends: base.yaml\nlearning_rate: 2e-5\nbeta: 0.1\nlearning_rate_scale: 4.0\n"
    resolved = load_recipe(write("arm.yaml", text), "miniature", ["--epsilon=0.3"])
    scaled = {"learning_rate_scale": (None, 4.0)}
    assert resolved.changes == {"learning_rate": (1e-5, 2e-5), "beta": (None, 0.1), **scaled}
    assert resolved.config.learning_rate == pytest.approx(8e-5)


def test_a_record_is_read_again_also_one_from_before_an_evaluation_of_its_own(write):
    given = {"accelerator_config": {"even_batches": False}}
    record = load_recipe("grpo", "miniature", given).to_dict()
    assert record["settings"].pop("evaluation") == "one_shot"
    again = resolve_run(write("record.yaml", json.dumps(record, default=str))).config
    assert (again.evaluation, again.eval_by) == ("one_shot", "level")
    assert again.accelerator_config.even_batches is False
    assert load_recipe(write("own.yaml", "beta: 0.1\n"), "miniature").config.evaluation == "trl"


def test_a_base_extends_nothing_and_a_recipe_is_a_file(write, tmp_path):
    arm = write("arm.yaml", "extends: middle.yaml\nbeta: 0.2")
    for base, said in (("arm.yaml", "a circle"), ("base.yaml", "more than one level deep")):
        write("middle.yaml", f"extends: {base}\nbeta: 0.1")
        with pytest.raises(ConfigurationError, match=said):
            load_recipe(arm, "miniature")
    with pytest.raises(ConfigurationError, match="is a directory"):
        load_recipe(tmp_path)


# Profiles


@pytest.mark.parametrize(
    ("gigabytes", "expected"), [(None, "miniature"), (24, "rtx4090"), (48, "rtx4090"), (80, "h100")]
)
def test_auto_picks_by_gpu_memory(monkeypatch, gigabytes, expected):
    card = SimpleNamespace(total_memory=(gigabytes or 0) * 2**30)
    monkeypatch.setattr("torch.cuda.is_available", lambda: gigabytes is not None)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: card)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda index: "a card")
    assert suitable_profile()[0] == expected


def test_a_recipe_may_name_its_profile_and_the_caller_has_the_last_word():
    assert load_recipe("quickstart").profile == "miniature"
    assert load_recipe("quickstart", profile="h100").profile == "h100"
    assert load_recipe("grpo", overrides=["--profile", "h100"]).profile == "h100"


@pytest.mark.parametrize("layer", ["arm.yaml", "base.yaml"])
def test_the_profile_that_a_recipe_names_is_beside_it(write, layer, tmp_path, monkeypatch):
    write("here.yaml", f"{MACHINE}beta: 0.3\n")
    for name in ("base.yaml", "arm.yaml"):
        extends = "extends: base.yaml\n" * (name == "arm.yaml")
        write(name, extends + ("profile: here.yaml\n" if name == layer else "epsilon: 0.1\n"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load_recipe(Path("../arm.yaml")).config.beta == 0.3
    asked = load_recipe(Path("../arm.yaml"), "here.yaml", {"epsilon": 0.2})
    assert (asked.profile, asked.config.beta) == ("here", 0.3)


def test_what_only_a_recipe_says_is_refused_elsewhere(write):
    for profile, words, said in (
        ("extends: rtx4090.yaml", [], "'extends: rtx4090.yaml' is not read here"),
        ("profile: h100", [], "'profile: h100' is not read here"),
        ("beta: 0.1", ["--extends", "x.yaml"], "line: 'extends: x.yaml' is not read here"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            load_recipe("grpo", str(write("here.yaml", MACHINE + profile)), words)


def test_a_start_is_looked_up_in_the_profile():
    starts = {"miniature": "miniature/chains", "h100": "google/gemma-3-270m-it"}
    for profile, expected in starts.items():
        assert starting_point(load_recipe("gemma3_270m", profile)) == expected
    with pytest.raises(ConfigurationError, match="no such entry in starts"):
        starting_point(load_recipe("grpo", "miniature", ["--start", "sft_late"]))


def test_the_engine_s_length_limits_prompts():
    """2048 tokens of context minus 1024 tokens of completion."""

    def limit(**settings):
        return load_recipe("grpo", "h100", settings).task.max_prompt_length

    assert (limit(), limit(max_prompt_length=300), limit(use_vllm=False)) == (1024, 300, None)
    said = "1500 and max_completion_length 1024 are more than vllm_max_model_length 2048; lower"
    with pytest.raises(ConfigurationError, match=said):
        limit(max_prompt_length=1500)


# Warnings


def test_overriding_half_a_template_warns_with_both_names():
    for setting, given, own in (("stop", "END", "</answer>"), ("reward", "last_number", "r1_zero")):
        (said,) = load_recipe("grpo", "miniature", [f"--{setting}", given]).warnings
        assert given in said and own in said
    assert not load_recipe("grpo", "miniature").warnings


CONTINUOUS = {"use_vllm": False, "use_transformers_continuous_batching": True, "min_tokens": 0}


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({"learning_rate": 1e-6}, False),  # of float32
        ({"dtype": "auto"}, True),
        ({"dtype": "bfloat16", "learning_rate": 1e-4}, False),
        ({"dtype": "float16"}, False),
        ({"dtype": "float16", "learning_rate": 1e-6}, True),
        ({"model_init_kwargs": {"dtype": "bfloat16"}}, True),
        ({"dtype": "bfloat16", "use_peft": True}, False),
        ({"load_in_4bit": True, "use_peft": True}, True),
        (CONTINUOUS, True),
        ({"dtype": "bfloat16", "optim": "sgd"}, False),
    ],
)
def test_updates_too_small_for_the_weights_are_warned_about(settings, warned):
    found = load_recipe("grpo", "h100", settings).warnings
    assert ["most updates are rounded away" in one for one in found] == [True] * warned
