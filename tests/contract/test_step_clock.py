"""`eval_steps` and `save_steps` count GRPO steps, also as fractions."""

from contextlib import nullcontext
from pathlib import Path

import pytest
from transformers import TrainerCallback

from trl_ablate import ConfigurationError
from trl_ablate.run.checkpoints import step_of

SHORT = {"max_completion_length": 4, "eval_strategy": "steps", "num_generations_eval": 1}
SHARES = {"generation_batch_size": 8, "max_steps": -1}
FOUR_STEPS = {"num_iterations": 2, "optimizer_batch_size": 4}
"""Optimizer steps on a rollout batch of eight."""


class AtTheFirst(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 1:
            control.should_save = control.should_evaluate = True


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("settings", "every", "expected"),
    [
        # a fraction is a share of the GRPO steps, off-policy as on-policy
        ({**SHARES, "grpo_steps": 5}, 0.4, [2, 4, 5]),
        ({**SHARES, "grpo_steps": 5, **FOUR_STEPS}, 0.4, [8, 16, 20]),
        ({**SHARES, "grpo_steps": 3, **FOUR_STEPS}, 0.1, [4, 8, 12]),
        # 2 GRPO steps per optimizer step, and 3/4: 6 optimizer steps are 4.5, and 11 are 8.25
        ({"steps_per_generation": 2, "gradient_accumulation_steps": 4, "max_steps": 5}, 4,
         [2, 4, 5]),
        ({"steps_per_generation": 4, "gradient_accumulation_steps": 3, "max_steps": 12}, 4,
         [6, 11, 12]),
        # another callback may ask for more; an evaluation may have a delay
        ({"max_steps": 3, "extras": {"callbacks": [AtTheFirst()]}}, 2, [1, 2, 3]),
        ({"max_steps": 4, "eval_delay": 3}, 1, [3, 4]),
    ],
)  # fmt: skip
def test_steps_of_evaluations_and_checkpoints(make_trainer, settings, every, expected):
    trainer = make_trainer(
        **SHORT, eval_steps=every, save_strategy="steps", save_steps=every, save_only_model=True,
        **settings,
    )  # fmt: skip
    trainer.train()
    evaluated = [row["step"] for row in trainer.state.log_history if "eval_reward" in row]
    saved = [step_of(folder) for folder in Path(trainer.args.output_dir).glob("checkpoint-*")]
    assert evaluated == expected
    assert sorted(saved) == ([1, 2, 3, 4] if "eval_delay" in settings else expected)


def test_a_resumed_training_saves_and_logs_by_its_own_settings(make_trainer):
    settings = {"max_steps": 4, "save_strategy": "steps"}
    make_trainer(**settings, save_steps=2, logging_steps=2).train()
    trainer = make_trainer(**settings, save_steps=1, logging_steps=1)
    folder = Path(trainer.args.output_dir)
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-2"))
    assert (folder / "checkpoint-3").exists()
    assert [row["step"] for row in trainer.state.log_history if "loss" in row] == [2, 3, 4]


@pytest.mark.parametrize(("questions", "steps", "refused"), [(3, 4, True), (3, 2, False)])
def test_an_epoch_that_cuts_a_step_off_is_refused(make_trainer, questions, steps, refused):
    """A rollout batch is of one question, and a step takes two batches."""
    trainer = make_trainer(steps_per_generation=1, grpo_steps=steps, max_steps=-1)
    trainer.train_dataset = trainer.train_dataset.select(range(questions))
    said = "the 3 rollout batches in an epoch do not fill optimizer steps of 2"
    with pytest.raises(ConfigurationError, match=said) if refused else nullcontext():
        trainer.train()
