"""Which checkpoint is whole."""

import pytest

from trl_ablate.resuming import (
    break_seal,
    changed_settings,
    is_whole,
    latest_whole_checkpoint,
    seal,
)

FILES = ("model.safetensors", "optimizer.pt", "global_step4/rank_0.pt", "trainer_state.json")


@pytest.fixture
def checkpoints(tmp_path):
    """Steps 2, 4 and 10, sealed."""
    for step in (2, 4, 10):
        for name in FILES:
            file = tmp_path / f"checkpoint-{step}" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"{}" * step)
        seal(tmp_path / f"checkpoint-{step}")
    return tmp_path


def test_the_latest_by_number(checkpoints):
    assert latest_whole_checkpoint(checkpoints) == checkpoints / "checkpoint-10"


@pytest.mark.parametrize("damage", [lambda kept: kept[:-1], lambda kept: b"[" + kept[1:]])
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_gone_or_damaged_leads_back_to_the_one_before(checkpoints, name, damage):
    damaged = checkpoints / "checkpoint-10" / name
    damaged.write_bytes(damage(damaged.read_bytes()))
    assert latest_whole_checkpoint(checkpoints) == checkpoints / "checkpoint-4"
    (checkpoints / "checkpoint-4" / name).unlink()
    assert latest_whole_checkpoint(checkpoints) == checkpoints / "checkpoint-2"


def test_without_its_seal_or_with_a_damaged_one_it_is_not_whole(checkpoints):
    break_seal(checkpoints / "checkpoint-10")
    (checkpoints / "checkpoint-4" / "sealed.json").write_text('{"model.saf')
    assert latest_whole_checkpoint(checkpoints) == checkpoints / "checkpoint-2"
    (checkpoints / "checkpoint-4" / "sealed.json").write_text("[]")
    assert latest_whole_checkpoint(checkpoints) == checkpoints / "checkpoint-2"


def test_what_is_added_later_does_no_harm(checkpoints):
    (checkpoints / "checkpoint-10" / "notes.txt").write_text("mine")
    assert is_whole(checkpoints / "checkpoint-10")


def test_no_checkpoint(tmp_path):
    assert latest_whole_checkpoint(tmp_path) is None


def test_settings_that_changed_since_are_named(tmp_path):
    file = tmp_path / "resolved_config.json"
    assert changed_settings(file, {"beta": 0.0}) == []
    file.write_text('{"settings": {"beta": 0.0, "seed": 1, "stop": "a"}}')
    assert changed_settings(file, {"beta": 0.04, "seed": 1, "levels": [3]}) == [
        "beta 0.0 -> 0.04", "levels None -> [3]", "stop a -> None",
    ]  # fmt: skip
