"""Tasks and worlds that a user brings: those that `trl-ablate new` writes, one with a tool, one of
reasoning-gym; checked, trained and evaluated."""

import json
import re
import runpy
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from trl.chat_template_utils import qwen3_chat_template

from tests.conftest import REPOSITORY
from tests.support.warm import warm
from trl_ablate import AblationTrainer, load_recipe, miniature
from trl_ablate.cli import check, new, train
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.identity import portable
from trl_ablate.run.json_files import read_jsonl, read_object, write_json, write_jsonl
from trl_ablate.study.engines import Job
from trl_ablate.study.engines.shipping import pack, working
from trl_ablate.study.planned import identity
from trl_ablate.trainer.one_shot import _takes_all

FEW = [
    "--grpo_steps", "2", "--eval_steps", "2", "--report_to", "none",
    "--generation_batch_size", "16", "--optimizer_batch_size", "16",
    "--per_device_train_batch_size", "16",
]  # fmt: skip
SMALL = """
extends: grpo.yaml
profile: miniature
eval_steps: 1
generation_batch_size: 8
optimizer_batch_size: 8
num_generations: 4
per_device_train_batch_size: 4
report_to: none
"""


@pytest.fixture
def task(tmp_path) -> Path:
    assert new.main([str(tmp_path / "my_task")]) == 0
    return tmp_path / "my_task"


@pytest.fixture
def world(tmp_path) -> Path:
    assert new.main(["--world", str(tmp_path / "my_world")]) == 0
    return tmp_path / "my_world"


def few_steps(folder: Path) -> list[str]:
    return [str(folder / "recipe.yaml"), "--profile", "miniature", *FEW]


def packed(folder: Path, tmp_path: Path):
    """What another machine's engine would send of a training in the folder."""
    places = (tmp_path / "store" / "run", tmp_path / "log", 0, tmp_path / "away")
    return pack(Job(few_steps(folder), *places))


# A task


def test_the_folder_holds_a_whole_task(task, capsys):
    names = {str(path.relative_to(task)) for path in task.rglob("*") if path.is_file()}
    assert names == {
        "README.md", "recipe.yaml", "study.yaml", "reward.py", "prompt.txt", "data/train.jsonl",
        "data/validation.jsonl",
    }  # fmt: skip
    lines = [path.read_text().splitlines() for path in sorted((task / "data").iterdir())]
    assert [len(one) for one in lines] == [160, 40]
    assert len({line for one in lines for line in one}) == 200
    assert new.main([str(task)]) == 2
    assert f"{task} exists already" in capsys.readouterr().err


def test_check_shows_prompts_and_rewards(task, capsys):
    assert check.main([str(task / "recipe.yaml")]) == 0
    printed = capsys.readouterr().out
    rows = list(read_jsonl(task / "data" / "train.jsonl"))
    for row in rows[:3]:
        assert f"User: {row['question']}\nAssistant: <think>" in printed
    for part in (
        "160 questions to train on, 40 to evaluate on",
        "columns: question, answer, level, prompt",
        "rewards: correct, brief",
        "reference answer",
        "wrong answer",
        "ms a row",
        "0 of 160 questions (0.0%) whose own answer does not earn full reward",
        f"<answer> {rows[0]['answer']} </answer>",
    ):
        assert part in printed
    assert "occur more than once" not in printed and "problem" not in printed


def test_check_finds_a_reward_that_cannot_tell_right_from_wrong(task, capsys):
    code = task / "reward.py"
    code.write_text(code.read_text().replace("given(text) == wanted", "wanted in text + wanted"))
    assert check.main([str(task / "recipe.yaml"), "--reward_weights", "[1.0, 0.0]"]) == 1
    assert "earns no more (1) than a wrong one (1)" in capsys.readouterr().out


def test_check_finds_repeated_and_shared_questions(task, capsys):
    train = task / "data" / "train.jsonl"
    text = train.read_text()
    train.write_text(text + 2 * (text.splitlines()[0] + "\n"))
    shutil.copy(train, train.with_name("validation.jsonl"))
    assert check.main([str(task / "recipe.yaml"), "--questions", "5"]) == 0
    printed = capsys.readouterr().out
    assert "1 questions occur more than once" in printed
    assert "160 questions are both trained on and evaluated on" in printed


@pytest.mark.slow
def test_it_trains_where_only_its_bundle_is_and_resumes_with_the_same_reward_only(
    task, tmp_path, capsys
):
    """Own reward, prompt and data travel with a run of another machine's engine."""
    bundle = packed(task, tmp_path)
    moved = task.rename(tmp_path / "moved")
    home = tmp_path / "there"
    (home / "empty").mkdir(parents=True)
    with working(bundle, home, code=REPOSITORY, cwd=home / "empty") as process:
        assert process.wait() == 0, (home / "run.log").read_text()
    run = RunDirectory(home / "run")
    trained = next(row for row in run.metrics() if "grad_norm" in row)
    assert {"rewards/correct/mean", "rewards/brief/mean", "grader/correct/errors"} <= trained.keys()
    first, _ = (row for row in run.metrics() if "eval_reward" in row)
    assert {f"eval_reward/level={level}" for level in (0, 1, 2)} <= first.keys()
    assert "data" in read_object(run.config_file)["files"].values()
    with (moved / "reward.py").open("a") as file:
        file.write("# changed\n")
    words = [*few_steps(moved), "--output_dir", str(run.path), "--resume"]
    assert train.main(words) == 2
    assert "resumed with other settings (reward_funcs" in capsys.readouterr().err


# A world


@pytest.mark.slow
def test_a_worlds_own_test_passes_and_check_shows_its_questions(world, monkeypatch, capsys):
    monkeypatch.syspath_prepend(world)
    tests = runpy.run_path(str(world / "test_world.py"))
    del sys.modules["world"]
    found = [test for name, test in tests.items() if name.startswith("test_")]
    assert len(found) == 4
    for test in found:
        test()
    assert check.main([str(world / "recipe.yaml")]) == 0
    printed = capsys.readouterr().out
    assert "7900 questions to train on, 1000 to evaluate on" in printed
    assert "problem" not in printed


@pytest.mark.slow
def test_a_base_is_taught_trained_and_evaluated_from_anywhere(world, tmp_path):
    file, run = world / "world.py", RunDirectory(tmp_path / "run")
    quick = file.read_text().replace("steps=80", "steps=4").replace("steps=60", "steps=2")
    file.write_text(quick)
    ended = warm(
        "train", world / "recipe.yaml", *FEW, "--eval_size", 32, "--train_size", 64,
        "--output_dir", run.path, environment={"TRL_ABLATE_CACHE": str(tmp_path / "cache")},
    ).wait()  # fmt: skip
    assert ended.code == 0, ended.printed
    first, _ = (row for row in run.metrics() if "eval_reward" in row)
    assert "eval_reward/level=tens" in first
    assert sum(first[f"eval_style/{style}"] for style in ("direct", "compared")) == 1
    (base,) = (tmp_path / "cache" / "miniature" / "larger").glob("base-*")
    assert (base / "model.safetensors").is_file()
    ended = warm("evaluate", run.path, "--output", tmp_path / "found.json").wait()
    assert ended.code == 0, ended.printed
    found = read_object(tmp_path / "found.json")
    assert found["resolved"]["task"]["dataset"] == f"miniature/{file}"


def test_a_run_is_known_by_its_world_wherever_that_is_and_takes_it_along(world, tmp_path):
    def id_of(place: Path) -> str:
        resolved = load_recipe(place / "recipe.yaml", overrides={"start": "sft_mid"})
        return identity(portable(resolved.to_dict()["settings"], resolved.files))

    shutil.copytree(world, copy := tmp_path / "copy")
    assert id_of(copy) == id_of(world)
    text = (copy / "world.py").read_text()
    (copy / "world.py").write_text(text.replace("steps=60", "steps=61"))
    assert id_of(copy) != id_of(world)
    assert "recipes/world.py" in packed(world, tmp_path).files


# A tool: the miniature has never seen a call, so a script writes its turns, calls and mistakes
# included; everything after that, from parsing the calls to the masked loss, is real. Environments
# are in `tests/contract/test_drop_in_worlds.py`.

CODE = '''
def add(a: int, b: int) -> int:
    """Add two numbers of one digit.

    Args:
        a: the first
        b: the second
    """
    if a > 9 or b > 9:
        raise ValueError("too large")
    return a + b


def right(completions, answer, **kwargs):
    return [float(answer in one[-1]["content"]) for one, answer in zip(completions, answer)]
'''

TOOL_TASK = f"""{SMALL}
model_name_or_path: model
dataset: tasks.jsonl
prompt_column: prompt
chat_template: qwen3.jinja
tools: ['world.py:add']
reward_funcs: ['world.py:right']
evaluation: one_shot
eval_size: null
num_generations_eval: 2
per_device_eval_batch_size: 4
grpo_steps: 2
max_completion_length: 400
"""


def next_turn(tokenizer, place: int, text: str) -> list[int]:
    """A call, of which every second one is a mistake; then an answer."""
    a, b = map(int, re.findall(r"user\s(\d)\+(\d)=", text)[-1])
    arguments = {"a": a + 10 * (place % 2), "b": b}
    written = f"<tool_call>\n{json.dumps({'name': 'add', 'arguments': arguments})}\n</tool_call>"
    if answers := re.findall(r"<tool_response>\s*(.*?)\s*</tool_response>", text):
        written = "none" if "error" in answers[-1] else f"it is {answers[-1]}"
    return [*tokenizer(written)["input_ids"], tokenizer.eos_token_id]


def test_a_tool_task_named_in_a_recipe_trains(tmp_path, monkeypatch):
    def turns(self, prompt_ids, *given, **named):
        texts = enumerate(self._tokenizer.batch_decode(prompt_ids))
        return [next_turn(self._tokenizer, place, text) for place, text in texts], None

    for trainer in AblationTrainer.__mro__[:2]:
        monkeypatch.setattr(trainer, "_generate_single_turn", turns)
    rows = [
        {"prompt": [{"role": "user", "content": f"{a}+{b}=?"}], "answer": str(a + b)}
        for a, b in [(1, 2), (3, 4), (2, 5), (4, 4), (6, 1), (5, 3)]
    ]
    write_jsonl(tmp_path / "tasks.jsonl", rows)
    files = {"recipe.yaml": TOOL_TASK, "world.py": CODE, "qwen3.jinja": qwen3_chat_template}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    shutil.copytree(miniature.build(), tmp_path / "model")
    config = tmp_path / "model" / "config.json"  # the template describes the tools in 500 tokens
    write_json(config, {**read_object(config), "max_position_embeddings": 2048})
    monkeypatch.chdir(tmp_path)
    assert train.main(["recipe.yaml", "--output_dir", "run"]) == 0
    logged = list(RunDirectory(Path("run")).metrics())
    training = [row for row in logged if "loss" in row]
    evaluated = [row for row in logged if "eval_reward" in row]
    assert len(training) == 2 and len(evaluated) == 3
    halves = {"tools/failure_frequency": 0.5, "tools/turns": 2}
    wanted = {"tools/call_frequency": 1, "rewards/right/mean": 0.5, **halves}
    assert all(row.items() >= wanted.items() and row["grad_norm"] > 0 for row in training)
    wanted = {"eval_reward": 0.5, **{f"eval_{name}": value for name, value in halves.items()}}
    assert evaluated[0].items() >= wanted.items()


def test_with_environments_an_evaluation_goes_in_batches_even_with_vllm():
    """Each completion holds an environment, so that not all of a set's exist at once."""
    on_vllm = {"use_vllm": True, "_is_vlm": False, "reward_funcs": []}
    for environments, at_once in ((None, True), ({"one": object}, False)):
        trainer = SimpleNamespace(environment_factories=environments, **on_vllm)
        assert _takes_all(trainer) is at_once


# reasoning-gym

GYM_TASK = f"""{SMALL}
dataset: reasoning_gym/chain_sum
gym: {{min_terms: 2, max_terms: 2, min_digits: 1, max_digits: 1, size: 32, seed: 3}}
reward_workers: 1
eval_by: num_terms
eval_size: 8
eval_sets: {{longer: {{dataset: reasoning_gym/gcd, size: 4}}}}
train_size: null
grpo_steps: 1
max_completion_length: 12
"""


@pytest.mark.slow
def test_a_task_of_reasoning_gym_is_checked_and_trains(tmp_path, capsys):
    pytest.importorskip("reasoning_gym", reason="pip install 'trl-ablate[gym]'")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(GYM_TASK)
    assert check.main([str(recipe)]) == 0
    printed = capsys.readouterr().out
    assert "32 questions to train on, 8 to evaluate on" in printed
    assert "0 of 32 questions (0.0%) whose own answer does not earn full reward" in printed
    assert train.main([str(recipe), "--output_dir", str(tmp_path / "run")]) == 0
    logged = {name for row in RunDirectory(tmp_path / "run").metrics() for name in row}
    assert {"rewards/reasoning_gym/mean", "eval_reward/num_terms=2"} <= logged
    assert "eval_longer_rewards/reasoning_gym/mean" in logged
