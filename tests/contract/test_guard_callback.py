"""`GuardCallback` on TRL's own trainers: it sees what they log, tells it, and changes no weight."""

import pytest
import torch
import trackio
from accelerate import Accelerator
from transformers import TrainerControl, TrainerState, TrainingArguments
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from tests.contract.alike import weights
from trl_ablate import AblationConfig, AblationTrainer, ConfigurationError, GuardCallback
from trl_ablate.cli.inspect import main as inspect
from trl_ablate.guard.arguments import GuardArguments
from trl_ablate.guard.logs import read_logs
from trl_ablate.guard.remedies import evidence
from trl_ablate.guard.rules import Alert
from trl_ablate.run.json_files import read_jsonl

GRPO, RLOO = (GRPOTrainer, GRPOConfig), (RLOOTrainer, RLOOConfig)
FLAT = {"guard_no_variance_steps": 2}


def nothing(completions, **kwargs):
    return [0.0] * len(completions)


def steps(file) -> list[int]:
    return [row["step"] for row in read_jsonl(file)]


@pytest.mark.parametrize("kind", [GRPO, RLOO], ids=["grpo", "rloo"])
def test_weights_are_the_same_to_the_bit_and_the_ledger_has_what_was_logged(
    make_trainer, tmp_path, capsys, kind
):
    without = make_trainer(*kind)
    without.train()
    watched = make_trainer(*kind, output_dir=str(tmp_path / "watched"))
    watched.add_callback(GuardCallback())
    watched.train()
    assert torch.equal(weights(watched), weights(without))
    assert "guard: no rule fired" in capsys.readouterr().out
    rows = list(read_jsonl(tmp_path / "watched" / "guard" / "metrics.jsonl"))
    logged = [row for row in watched.state.log_history if "loss" in row]
    assert [{**row, "seconds": 0} for row in rows] == [{**row, "seconds": 0} for row in logged]
    assert len(rows) == 3
    (log,) = read_logs(tmp_path / "watched")
    assert [row["reward"] for row in log.rows] == [row["reward"] for row in logged]


@pytest.mark.parametrize("kind", [GRPO, (AblationTrainer, AblationConfig)], ids=["stock", "ours"])
def test_a_rule_stops_a_training_and_the_verdict_has_what_to_try(
    make_trainer, tmp_path, capsys, kind
):
    trainer = make_trainer(*kind, reward=nothing, max_steps=9, log_completions=True)
    guard = GuardCallback(guard_no_variance="stop", **FLAT)
    trainer.add_callback(guard)
    trainer.train()
    assert trainer.state.global_step == 2
    assert guard.stopped_by and guard.stopped_by.rule == "no_variance"
    (alert,) = read_jsonl(tmp_path / "run" / "guard" / "alerts.jsonl")
    assert (alert["rule"], alert["step"], alert["action"]) == ("no_variance", 2, "stop")
    told = capsys.readouterr().out
    settings = ["--guard_no_variance=stop", "--guard_no_variance_steps=2"]
    assert inspect([str(tmp_path / "run"), *settings]) == 1
    for shown in (told, capsys.readouterr().out):
        assert "step 2: no_variance" in shown
        assert "try: take easier or harder questions" in shown
        assert "no return after step 0 (no_variance): 100% of 2 steps, " in shown
    longer = Alert("length", "warn", 1, 2.0, 1.0, "")
    assert next(evidence(longer, tmp_path / "run")).startswith("step 1, longest of 8 (")


def test_a_resumed_training_goes_on_with_the_ledger(make_trainer, tmp_path):
    """Rules know the rows before the checkpoint; those after it, of the killed run, are gone."""
    folder = tmp_path / "run" / "guard"
    for resumed in (None, str(tmp_path / "run" / "checkpoint-2")):
        trainer = make_trainer(*GRPO, max_steps=4, save_strategy="steps", save_steps=2,
                               reward=nothing)  # fmt: skip
        trainer.add_callback(GuardCallback(guard_no_variance_steps=3))
        trainer.train(resume_from_checkpoint=resumed)
    assert steps(folder / "metrics.jsonl") == [1, 2, 3, 4]
    assert steps(folder / "alerts.jsonl") == [3]
    fresh = make_trainer(*GRPO, max_steps=1)
    fresh.add_callback(GuardCallback())
    fresh.train()
    assert steps(folder / "metrics.jsonl") == [1]


def test_an_alert_reaches_trackio(make_trainer, tmp_path, monkeypatch):
    for module in (trackio.utils, trackio.sqlite_storage):
        monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")
    trainer = make_trainer(
        *GRPO, reward=nothing, report_to="trackio", project="guarded", run_name="one"
    )
    trainer.add_callback(GuardCallback(**FLAT))
    trainer.train()
    (alert,) = trackio.Api().alerts("guarded")
    assert alert["title"] == "guard: no_variance"


@pytest.fixture
def told(tmp_path, capsys):
    """`told(rows)`: what a guard prints for them, as the callback handler passes them."""
    args = TrainingArguments(str(tmp_path), report_to="none")

    def told(rows, history=(), guard=None, **given):
        guard, control = guard or GuardCallback(), TrainerControl()
        done = history[-1]["step"] if history else 0
        state = TrainerState(log_history=[*history], global_step=done)
        guard.on_train_begin(args, state, control)
        for state.global_step, row in enumerate(rows, start=done + 1):
            state.log_history.append({**row, "step": state.global_step})
            guard.on_log(args, state, control, logs=row, **given)
        guard.on_train_end(args, state, control)
        return capsys.readouterr().out

    return told


WELL = {"loss": 0.1, "reward": 1.0}
FALLEN = {"loss": 0.1, "reward": 0.1}


def test_the_metrics_of_ppo_have_other_names(told):
    """Those of TRL's former PPO trainer, which TRL 1.16 no longer has."""
    well = {"objective/scores": 1.0, "policy/entropy_avg": 1.0, "loss/policy_avg": 0.1}
    bad = {"objective/scores": 0.1, "policy/entropy_avg": 0.01, "loss/policy_avg": 0.1}
    found = told([*[well] * 12, *[bad] * 4, {**bad, "loss/policy_avg": float("nan")}])
    for said in ("15: reward (warn): reward is 0.1", "15: entropy (warn)", "17: nonfinite (stop)"):
        assert f"step {said}" in found


def test_a_step_that_the_gradient_scaler_skips_is_no_divergence(told, tmp_path):
    """With fp16 it skips a step whose gradient overflows, and halves its factor."""
    weights = [torch.nn.Parameter(torch.zeros(1))]
    optimizer = Accelerator().prepare_optimizer(torch.optim.SGD(weights))
    rows = [{"loss": 0.1, "grad_norm": float("inf")}]
    assert "nonfinite (stop)" in told(rows, optimizer=optimizer)
    optimizer._is_overflow = True
    assert "no rule fired" in told(rows, optimizer=optimizer)
    assert "grad_norm" not in (tmp_path / "guard" / "metrics.jsonl").read_text()
    assert "no rule fired" in told([], history=[{**rows[0], "step": 1}])


def test_a_resumed_training_without_a_ledger_has_its_history_and_is_stopped_again(told, tmp_path):
    past = [{"eval_reward": 0.9}, *[WELL] * 12, *[FALLEN] * 5]
    history = [{**row, "step": step} for step, row in enumerate(past)]
    guard = GuardCallback(guard_reward="stop")
    told([*[FALLEN] * 3, {"train_runtime": 1.0}, {"train_runtime": 1.0, **FALLEN}], history, guard)
    assert guard.stopped_by and guard.stopped_by.step == 20
    assert [row["step"] for row in read_logs(tmp_path)[0].rows] == [*range(21), 22]
    unwatched = TrainerState(log_history=[*history, {**WELL, "step": 30}])
    unwatched.save_to_json(str(tmp_path / "trainer_state.json"))
    assert len(read_logs(tmp_path)[0].rows) == 19


def test_arguments_and_settings_together_and_unknown_ones_are_refused():
    with pytest.raises(ConfigurationError, match="guard_entropi.*did you mean 'guard_entropy'"):
        GuardCallback(guard_entropi="stop")
    with pytest.raises(ConfigurationError, match="both arguments and guard_entropy"):
        GuardCallback(GuardArguments(), guard_entropy="stop")


def test_without_a_place_for_its_files_it_still_tells(told, tmp_path, caplog):
    (tmp_path / "guard").write_text("a file of the user")
    assert "step 4: reward (warn)" in told([WELL, *[FALLEN] * 3])
    (warning,) = caplog.messages
    assert warning.startswith("the guard writes no more files (")
