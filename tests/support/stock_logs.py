"""Logs of stock TRL runs, for the tests of `trl-ablate inspect`.

`python -m tests.support.stock_logs FOLDER` trains on sums twice with TRL's own `GRPOTrainer`,
without this package's trainer: at a healthy learning rate, and at one at which the policy
collapses. Each run leaves TRL's `trainer_state.json`, and its rows in a trackio project of its
name. `tests/data/stock_grpo` holds the result (TRL 1.16.0, two CPU cores).
"""

import os
import re
import sys
from pathlib import Path

LEARNING_RATES = {"healthy": 3e-4, "collapsing": 6e-3}
STEPS = 60


def main(folder: Path) -> None:
    os.environ["TRACKIO_DIR"] = str(folder / "trackio")
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from trl_ablate import miniature
    from trl_ablate.prompts.templates import render

    def ends_in_the_answer(completions, answer, **kwargs):
        return [
            float(re.search(rf"<answer>\s*{gold}\s*</answer>", text) is not None)
            for text, gold in zip(completions, answer, strict=True)
        ]

    questions = miniature.problems("train", seed=0, world="sums")[:2048]
    rows = [
        {"prompt": render("r1_zero", row["question"], "short"), "answer": row["answer"]}
        for row in questions
    ]
    for name, learning_rate in LEARNING_RATES.items():
        trainer = GRPOTrainer(
            model=str(miniature.build(world="sums")),
            reward_funcs=ends_in_the_answer,
            train_dataset=Dataset.from_list(rows),
            args=GRPOConfig(
                output_dir=str(folder / name), run_name=name, project=name, report_to="trackio",
                learning_rate=learning_rate, lr_scheduler_type="constant", max_steps=STEPS,
                logging_steps=1, save_strategy="no", per_device_train_batch_size=64,
                num_generations=8, max_completion_length=32, use_cpu=True, bf16=False,
                gradient_checkpointing=False, adam_beta2=0.95, seed=0,
            ),
        )  # fmt: skip
        trainer.train()
        trainer.save_state()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
