"""`save_total_limit` deletes the run's own checkpoints, and no folder of a similar name."""

import pytest

MINE = ("checkpoint-0.bak", "checkpoint-9.tmp", "checkpoint-x", "my_checkpoint-1")
"""transformers takes the first two, and a last one of them for the newest checkpoint."""


@pytest.mark.parametrize("best", [False, True])
def test_folders_of_the_user_are_kept_and_not_counted(make_trainer, tmp_path, best):
    for name in MINE:
        (tmp_path / "run" / name).mkdir(parents=True)
        (tmp_path / "run" / name / "model.safetensors").write_text("mine")
    trainer = make_trainer(
        save_strategy="steps", save_steps=1, save_total_limit=1 if best else 2,
        eval_strategy="steps", eval_steps=1, load_best_model_at_end=best,
        metric_for_best_model="eval_reward",
    )  # fmt: skip
    trainer.train()
    left = {path.name for path in (tmp_path / "run").glob("*checkpoint*")}
    kept = {trainer.state.best_model_checkpoint[-12:]} if best else {"checkpoint-2", "checkpoint-3"}
    assert left == {*MINE, *kept}
    for name in MINE:
        assert (tmp_path / "run" / name / "model.safetensors").read_text() == "mine"
