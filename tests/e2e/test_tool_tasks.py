"""A tool task and a multi-turn environment, named in a recipe by their files, trained to the end.

The miniature has never seen a call, so a script writes its turns, calls and mistakes included;
everything after that, from parsing the calls to the masked loss, is real.
"""

import json
import re
import shutil
from types import SimpleNamespace

import pytest
from trl import GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template

from trl_ablate import AblationTrainer, miniature
from trl_ablate.cli import train
from trl_ablate.run.json_files import write_jsonl
from trl_ablate.trainer.one_shot import _takes_all

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


class Guessing:
    """Guess a number; the answer to a guess says where to look next."""

    def reset(self, number=0, **row):
        self.number, self.found = number, False
        return " It is from 1 to 9."

    def guess(self, value: int) -> str:
        """Guess the number.

        Args:
            value: the guess
        """
        self.found = value == self.number
        return "right" if self.found else "higher" if value < self.number else "lower"

    def get_reward(self):
        return float(self.found)


def right(completions, answer, **kwargs):
    return [float(answer in one[-1]["content"]) for one, answer in zip(completions, answer)]
'''

RECIPE = """
extends: grpo.yaml
profile: miniature
dataset: tasks.jsonl
prompt_column: prompt
chat_template: qwen3.jinja
evaluation: one_shot
eval_size: null
num_generations_eval: 2
per_device_eval_batch_size: 4
eval_steps: 1
grpo_steps: 2
generation_batch_size: 8
optimizer_batch_size: 8
num_generations: 4
per_device_train_batch_size: 4
max_completion_length: 400
report_to: none
model_name_or_path: model
"""

TOOL = "tools: ['world.py:add']\nreward_funcs: ['world.py:right']\n"
WORLD = "environment_factory: world.py:Guessing\nreward_funcs: []\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    rows = []
    for a, b in [(1, 2), (3, 4), (2, 5), (4, 4), (6, 1), (5, 3)]:
        prompt = [{"role": "user", "content": f"{a}+{b}=?"}]
        rows.append({"prompt": prompt, "answer": str(a + b), "number": a + b})
    write_jsonl(tmp_path / "tasks.jsonl", rows)
    (tmp_path / "world.py").write_text(CODE)
    (tmp_path / "qwen3.jinja").write_text(qwen3_chat_template)
    shutil.copytree(miniature.build(), tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["max_position_embeddings"] = 2048  # the template describes the tools in 500 tokens
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def generated(monkeypatch):
    """Whether each generation was one of training, and how many completions it had."""
    calls, generate = [], GRPOTrainer._generate_and_score_completions

    def scored(self, inputs):
        calls.append((self.model.training, len(inputs)))
        return generate(self, inputs)

    monkeypatch.setattr(GRPOTrainer, "_generate_and_score_completions", scored)
    return calls


def script(monkeypatch, write):
    """`write(numbers, answers, place)`: the next turn, after the answers of the tool so far."""

    def turn(self, prompt_ids, images, multimodal_fields, num_generations, **kwargs):
        texts = self._tokenizer.batch_decode(prompt_ids)
        ids = []
        for place, text in enumerate(texts):
            a, b = map(int, re.findall(r"user\s(\d)\+(\d)=", text)[-1])
            answers = re.findall(r"<tool_response>\s*(.*?)\s*</tool_response>", text)
            words = self._tokenizer(write((a, b), answers, place))["input_ids"]
            ids.append([*words, self._tokenizer.eos_token_id])
        return ids, None

    for trainer in AblationTrainer.__mro__[:2]:
        monkeypatch.setattr(trainer, "_generate_single_turn", turn)


def call(name, **arguments):
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


def trained(folder, extra):
    """The rows of training and those of evaluation."""
    (folder / "recipe.yaml").write_text(RECIPE + extra)
    assert train.main([str(folder / "recipe.yaml"), "--output_dir", str(folder / "run")]) == 0
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").open()]
    return [[row for row in rows if name in row] for name in ("loss", "eval_reward")]


def test_a_tool_task_named_in_a_recipe_trains(folder, monkeypatch):
    def write(numbers, answers, place):
        a, b = numbers
        if answers:
            return "none" if "error" in answers[-1] else f"it is {answers[-1]}"
        return call("add", a=a + 10 * (place % 2), b=b)  # every second call is a mistake

    script(monkeypatch, write)
    training, evaluated = trained(folder, TOOL)
    assert len(training) == 2 and len(evaluated) == 3
    halves = {"tools/failure_frequency": 0.5, "tools/turns": 2}
    wanted = {"tools/call_frequency": 1, "rewards/right/mean": 0.5, **halves}
    assert all(row.items() >= wanted.items() and row["grad_norm"] > 0 for row in training)
    wanted = {"eval_reward": 0.5, **{f"eval_{name}": value for name, value in halves.items()}}
    assert evaluated[0].items() >= wanted.items()


def test_an_environment_of_several_turns_trains(folder, generated, monkeypatch):
    def write(numbers, answers, place):
        number, lost = sum(numbers), place % 2
        guesses = [1, 9 if lost else number]  # the second guess of every second row is wrong
        if len(answers) < len(guesses):
            return call("guess", value=guesses[len(answers)])
        return f"done: {answers[-1]}"

    script(monkeypatch, write)
    training, evaluated = trained(folder, WORLD)
    assert len(training) == 2
    wanted = {"tools/call_frequency": 2, "tools/failure_frequency": 0, "tools/turns": 3}
    wanted |= {"reward": 0.5, "rewards/Guessing/mean": 0.5}
    assert all(row.items() >= wanted.items() and row["grad_norm"] > 0 for row in training)
    sizes = [size for training, size in generated if not training]
    assert sizes == [4, 4, 4] * 3  # six questions, two samples each, four rows at once
    assert [row["eval_reward"] for row in evaluated] == [0.5] * 3


@pytest.mark.parametrize(("environments", "at_once"), [(None, True), ({"one": object}, False)])
def test_an_evaluation_with_environments_goes_in_batches_even_with_vllm(environments, at_once):
    """Each completion holds an environment, so that not all of a set's exist at once."""
    trainer = SimpleNamespace(
        use_vllm=True, environment_factories=environments, _is_vlm=False, reward_funcs=[]
    )
    assert _takes_all(trainer) is at_once  # type: ignore
