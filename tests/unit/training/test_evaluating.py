"""Which model a name on the command line refers to, and how it is evaluated."""

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.support.tiny_models import save_tiny_qwen2
from trl_ablate import ConfigurationError, load_recipe
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.rewards import MathGrader
from trl_ablate.run.checkpoints import seal
from trl_ablate.run.directory import RunDirectory
from trl_ablate.training.evaluating import (
    Checkpoint,
    build_evaluator,
    describe,
    find_checkpoint,
    to_evaluate,
)
from trl_ablate.training.models import checked_tokenizer, merged_adapter


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    """A run of `question_only` with a dataset of its own, and no model yet."""
    settings = {
        "seed": 7, "learning_rate": 1e-5, "eval_split": "odd", "levels": ["3"],
        "hub_token": "hf_secret", "eval_sets": {"mine": "mine.jsonl"},
        "lr_scheduler_type": "greedy", "lr_scheduler_kwargs": {"patience": 2},
        "model_revision": "of-the-base",
    }  # fmt: skip
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir(parents=True, exist_ok=True)
    run.write_config(load_recipe(SHIPPED / "question_only.yaml", "miniature", settings).to_dict())
    return run


def put_model(folder):
    folder.mkdir()
    (folder / "config.json").write_text("{}")


def test_of_a_run_the_best_model_is_taken_or_else_the_last(run, tmp_path):
    """A model inside a run is evaluated as the run; what is no folder is a name."""
    for name in (run.path, tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ConfigurationError, match="holds no model|does not exist"):
            find_checkpoint(str(name))
    put_model(run.checkpoint_last)
    assert find_checkpoint(str(run.checkpoint_last)).run == run
    assert find_checkpoint(str(run.path)) == Checkpoint(str(run.checkpoint_last), run)
    for name in ("miniature", "miniature/sft_early", "org/model"):
        assert find_checkpoint(name) == Checkpoint(name)
    put_model(run.checkpoint_best)
    assert find_checkpoint(str(run.path)) == Checkpoint(str(run.checkpoint_best), run)


def test_a_model_that_does_not_agree_with_its_seal_is_refused(run, tmp_path):
    """The seal is written last. A model from elsewhere has none."""
    put_model(run.checkpoint_last)
    seal(run.checkpoint_last)
    assert find_checkpoint(str(run.path)).model == str(run.checkpoint_last)
    (run.checkpoint_last / "config.json").write_text("{ }")
    put_model(run.path / "checkpoint-4")
    for name in (run.path, run.checkpoint_last, run.path / "checkpoint-4"):
        with pytest.raises(ConfigurationError, match="(_last|-4) does not match its sealed.json"):
            find_checkpoint(str(name))
    put_model(tmp_path / "checkpoint-4")
    assert find_checkpoint(str(tmp_path / "checkpoint-4")).run is None


def evaluated(run, *words, **given):
    return to_evaluate(Checkpoint("somewhere", run), words, scratch=str(run.path), **given)


def test_a_run_is_evaluated_as_it_was_trained(run):
    """Without its schedule, which may follow evaluations, and the revision, which is of its base;
    another dataset leaves behind what was said of the first."""
    resolved = evaluated(run, "--eval_top_p", "0.5")
    task, config = resolved.task, resolved.config
    assert (task.template, task.eval_split, task.levels) == ("question_only", "odd", ["3"])
    assert (config.seed, config.eval_top_p, config.hub_token) == (7, 0.5, None)
    assert (config.lr_scheduler_type, config.lr_scheduler_kwargs) == ("constant", None)
    assert resolved.model.model_name_or_path == "somewhere"
    assert resolved.model.model_revision == "main"
    assert evaluated(run, "--model_revision", "v2").model.model_revision == "v2"
    alike = load_recipe(SHIPPED / "question_only.yaml", "miniature", {"learning_rate": 1e-5})
    assert config.learning_rate == alike.config.learning_rate
    assert config.eval_by == "level"
    resolved = evaluated(run, "--dataset", "gsm8k", "--eval_split", "test")
    task, config = resolved.task, resolved.config
    assert (task.dataset, task.eval_split) == ("gsm8k", "test")
    assert task.levels is task.eval_sets is config.eval_by is None


def test_of_the_tokens_of_a_run_code_gets_none_and_other_settings_null(run):
    judge = [{"path": "judge.score", "kwargs": {"api_key": "of-a-judge"}}]
    settings = {"reward_funcs": judge, "model_init_kwargs": {"token": "of-the-hub"}}
    run.write_config(load_recipe("grpo", "miniature", settings).to_dict())
    with pytest.raises(ConfigurationError, match="api_key in reward_funcs .* give --reward_funcs"):
        evaluated(run)
    resolved = evaluated(run, "--reward_funcs", "answer")
    assert resolved.config.model_init_kwargs == {"token": None}


def test_no_report_of_an_evaluation_holds_a_token_of_its_settings(run, monkeypatch):
    words = ["--model_init_kwargs", '{"token": "of-the-hub"}']
    monkeypatch.setattr("sys.argv", ["trl-ablate", *words])
    assert "of-the-hub" not in str(describe("somewhere", evaluated(run, *words), {}))


def test_a_recipe_wins_over_the_run_and_a_profile_needs_one(run):
    resolved = evaluated(run, recipe=SHIPPED / "grpo.yaml", profile="miniature")
    assert resolved.task.template == "r1_zero"
    with pytest.raises(ConfigurationError, match="profile 'h100' needs a recipe"):
        evaluated(run, profile="h100")
    with pytest.raises(ConfigurationError, match="'profile: h100' is not read here"):
        evaluated(run, "profile=h100")


def test_an_adapter_is_evaluated_with_its_base_and_not_without_one_of_its_tensors(
    tiny_model, tmp_path
):
    base, folder = AutoModelForCausalLM.from_pretrained(tiny_model), tmp_path / "adapter"
    before = base.model.layers[0].self_attn.q_proj.weight.detach().clone()
    adapted = get_peft_model(base, LoraConfig(r=2, lora_alpha=6, target_modules=["q_proj"]))
    layer = adapted.base_model.model.model.layers[0].self_attn.q_proj
    torch.nn.init.normal_(layer.lora_B["default"].weight)
    change = 3 * layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    adapted.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(folder)
    words, scratch = ["--eval_size", "4", "--max_completion_length", "4"], str(tmp_path / "out")
    found = find_checkpoint(str(folder))
    resolved = to_evaluate(found, words, profile="miniature", scratch=scratch)
    resolved.config._n_gpu = 2  # as without a launcher where two GPUs are visible
    with MathGrader(workers=1) as grader:
        evaluator = build_evaluator(resolved, grader)
        merged = evaluator.model.model.layers[0].self_attn.q_proj.weight
        torch.testing.assert_close(merged, before + change)
        assert evaluator.evaluate()["eval_mean_length"] > 0
        tensors = load_file(folder / "adapter_model.safetensors")
        tensors.pop(next(name for name in tensors if "lora_B" in name))
        save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ConfigurationError, match="missing adapter keys.*lora_B"):
            build_evaluator(resolved, grader)
    resolved = load_recipe("grpo", "miniature", {"model_name_or_path": str(folder)})
    with pytest.raises(ConfigurationError, match="is an adapter, and a training starts from"):
        checked_tokenizer(str(folder), resolved)


MINE = """
from transformers import Qwen2Config, Qwen2ForCausalLM

class MineConfig(Qwen2Config):
    model_type = "mine"

class Mine(Qwen2ForCausalLM):
    config_class = MineConfig
"""


def test_an_adapter_on_a_model_with_code_of_its_own_is_evaluated_where_that_is_trusted(tmp_path):
    base, folder = Path(save_tiny_qwen2(tmp_path / "base")), tmp_path / "adapter"
    (base / "mine.py").write_text(MINE)
    code = {"AutoConfig": "mine.MineConfig", "AutoModelForCausalLM": "mine.Mine"}
    config = json.loads((base / "config.json").read_text())
    config |= {"model_type": "mine", "architectures": ["Mine"], "auto_map": code}
    (base / "config.json").write_text(json.dumps(config))
    model = AutoModelForCausalLM.from_pretrained(base, trust_remote_code=True)
    chosen = {"target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
    get_peft_model(model, LoraConfig(r=2, **chosen)).save_pretrained(folder)
    words = ["--trust_remote_code", "true", "--attn_implementation", "eager"]
    resolved = to_evaluate(Checkpoint(str(folder)), words, profile="miniature", scratch="unused")
    merged = merged_adapter(str(folder), resolved)
    assert (type(merged).__name__, merged.config._attn_implementation) == ("Mine", "eager")
