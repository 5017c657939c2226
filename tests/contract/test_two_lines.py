"""A script written like TRL's example trains with this package after two changed lines."""

import runpy

import torch
from safetensors.torch import load_file

from tests.support.trainers import PROMPTS

SCRIPT = """
from datasets import Dataset
from trl import GRPOConfig
from trl import GRPOTrainer

dataset = Dataset.from_dict({{"prompt": {prompts}}})


def reward_num_unique_letters(completions, **kwargs):
    return [len(set(text)) / 10 for text in completions]


args = GRPOConfig(
    output_dir="{out}", max_steps=3, logging_steps=1, per_device_train_batch_size=8,
    num_generations=4, max_completion_length=12, learning_rate=1e-3, use_cpu=True, bf16=False,
    gradient_checkpointing=False, report_to="none", save_strategy="no", disable_tqdm=True,
)
trainer = GRPOTrainer(
    model="{model}",
    reward_funcs=reward_num_unique_letters,
    args=args,
    train_dataset=dataset,
)
trainer.train()
trainer.save_model()
"""

CHANGES = {
    "from trl import GRPOConfig": "from trl_ablate import AblationConfig as GRPOConfig",
    "from trl import GRPOTrainer": "from trl_ablate import AblationTrainer as GRPOTrainer",
}


def trained(folder, model, name, changes):
    """The rewards that the script logged, and the weights that it saved."""
    text = SCRIPT.format(prompts=PROMPTS, out=folder / name, model=model)
    for line, other in changes.items():
        assert text.count(line) == 1
        text = text.replace(line, other)
    (folder / f"{name}.py").write_text(text)
    history = runpy.run_path(str(folder / f"{name}.py"))["trainer"].state.log_history
    rewards = [row["reward"] for row in history if "reward" in row]
    return rewards, load_file(folder / name / "model.safetensors")


def test_two_changed_lines_train_the_same(tmp_path, tiny_model):
    """The speed-ups stay on, so that weights agree up to rounding, and completions are equal."""
    stock, theirs = trained(tmp_path, tiny_model, "stock", {})
    ours, mine = trained(tmp_path, tiny_model, "ours", CHANGES)
    assert ours == stock and len(ours) == 3 and len(set(ours)) > 1
    assert all(torch.allclose(mine[name], theirs[name], atol=1e-5) for name in theirs)
    before = load_file(f"{tiny_model}/model.safetensors")
    assert max((before[name] - theirs[name]).abs().max() for name in theirs) > 1e-3
