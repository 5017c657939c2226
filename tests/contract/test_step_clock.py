"""`eval_steps` and `save_steps` count GRPO steps, also as fractions."""

from pathlib import Path

import pytest

from trl_ablate.run.checkpoints import step_of


@pytest.mark.parametrize(
    ("grpo_steps", "share", "expected"),
    [(5, 0.4, [2, 4, 5]), (3, 0.1, [1, 2, 3])],
)
def test_a_fraction_is_a_share_of_the_grpo_steps(
    make_trainer, tmp_path, grpo_steps, share, expected
):
    """Off-policy, with four optimizer steps per GRPO step, and on-policy, as in transformers."""
    for off_policy in ({"num_iterations": 2, "optimizer_batch_size": 4}, {}):
        trainer = make_trainer(
            generation_batch_size=8,
            max_steps=-1,
            grpo_steps=grpo_steps,
            max_completion_length=4,
            eval_strategy="steps",
            eval_steps=share,
            save_strategy="steps",
            save_steps=share,
            save_only_model=True,
            output_dir=str(tmp_path / f"run{len(off_policy)}"),
            num_generations_eval=1,
            **off_policy,
        )
        trainer.train()
        per_rollout = trainer.args.optimizer_steps_per_rollout
        assert per_rollout == (4 if off_policy else 1)
        evaluated = [row["step"] for row in trainer.state.log_history if "eval_reward" in row]
        saved = [step_of(folder) for folder in Path(trainer.args.output_dir).glob("checkpoint-*")]
        assert evaluated == sorted(saved) == [step * per_rollout for step in expected]


@pytest.mark.parametrize(("rollout", "step", "expected"), [(2, 4, [2, 4, 5]), (4, 3, [6, 11, 12])])
def test_grpo_steps_are_counted_where_an_optimizer_step_takes_several_or_no_whole_number(
    make_trainer, rollout, step, expected
):
    """Evaluated every 4 GRPO steps and at the end, with 2 and 3/4 GRPO steps per optimizer step
    (with 3/4, 6 optimizer steps are 4.5 GRPO steps and 11 are 8.25)."""
    trainer = make_trainer(
        steps_per_generation=rollout,
        gradient_accumulation_steps=step,
        max_steps=expected[-1],
        max_completion_length=4,
        eval_strategy="steps",
        eval_steps=4,
        num_generations_eval=1,
    )
    trainer.train()
    evaluated = [row["step"] for row in trainer.state.log_history if "eval_reward" in row]
    assert evaluated == expected


def test_evaluation_waits_for_its_delay(make_trainer):
    trainer = make_trainer(
        max_steps=4, max_completion_length=4, eval_strategy="steps", eval_steps=1, eval_delay=3,
        num_generations_eval=1,
    )  # fmt: skip
    trainer.train()
    evaluated = [row["step"] for row in trainer.state.log_history if "eval_reward" in row]
    assert evaluated == [3, 4]
