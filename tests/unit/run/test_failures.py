"""Messages for known failures; a record that survives a full disk."""

import errno
import pickle
import sqlite3
from multiprocessing import synchronize

import pytest
import requests
import torch
from trl.generation.vllm_client import VLLMClient

from trl_ablate.errors import RewardError
from trl_ablate.run import directory
from trl_ablate.run.directory import MARK, RESERVE, RunDirectory, claimed
from trl_ablate.run.failures import is_divergence, message_of

FULL = OSError(errno.ENOSPC, "No space left on device", "runs/a/metrics.jsonl")


def named(name: str, text: str) -> Exception:
    """An error that has the name of one of torch or of vLLM."""
    return type(name, (RuntimeError,), {})(text)


def of_a_lock() -> OSError:
    """Python's error names no file: it is raised where the lock is made."""
    code = compile(f"raise OSError({errno.ENOSPC}, '')", synchronize.__file__, "exec")
    with pytest.raises(OSError) as raised:
        exec(code)
    return raised.value


def without_its_server() -> Exception:
    client = object.__new__(VLLMClient)
    client.base_url = "http://127.0.0.1:9"
    with pytest.raises(requests.ConnectionError) as raised:
        client.check_server()
    return raised.value


def caused_by(cause: Exception) -> RuntimeError:
    error = RuntimeError("could not be saved")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FULL, "the disk is full (runs/a/metrics.jsonl); free some space"),
        (caused_by(FULL), "the disk is full; "),
        (RuntimeError("I/O error: No space left on device (os error 28)"), "the disk is full; "),
        (RuntimeError("PytorchStreamWriter failed writing file data/3"), "the disk is full; "),
        (RuntimeError("unable to write to file </torch_9_1>: No space left on device (28)"),
         "shared memory (/dev/shm) is full; set dataloader_num_workers to 0"),
        (RuntimeError("It is possible that workers are out of shared memory. "), "memory (/dev/s"),
        (of_a_lock(), "shared memory (/dev/shm) is full"),
        (pickle.UnpicklingError("Weights only load failed. ...\nGLOBAL os.system"),
         "holds more than tensors and numbers, so it was not loaded"),
        (sqlite3.OperationalError("database or disk is full"), "the disk is full; "),
        (named("OutOfMemoryError", "CUDA out of memory."), "lower per_device_train_batch_size"),
        (FileNotFoundError(errno.ENOENT, "No such file", "a.jsonl"), "a.jsonl is missing; restore"),
        (named("EngineDeadError", "EngineCore encountered an issue."), "vLLM engine died"),
        (Exception("Request failed: 500, dead"), "(Request failed: 500, dead); check its log"),
        (without_its_server(), "can't be reached at http://127.0.0.1:9 after"),
        (RewardError("reward function 'x' raised"), "reward function 'x' raised"),
        (FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']"),
         "no folder for temporary files can be written to: the disk is full, or"),
        (RuntimeError("the engine died"), "None"),  # nobody foresaw these: they are left alone
        (OSError(errno.EIO, "I/O"), "None"),
        (requests.ConnectionError("Max retries exceeded with url: http://judge"), "None"),
        (TypeError("f() got an unexpected positional argument"), "None"),
    ],
)  # fmt: skip
def test_known_trouble_is_one_sentence(error, said):
    assert said in str(message_of(error))
    assert "\n" not in str(message_of(error))


def test_sampling_from_broken_weights_is_a_divergence():
    with pytest.raises(RuntimeError) as raised:
        torch.multinomial(torch.tensor([torch.nan, 1.0]), 1)
    assert is_divergence(raised.value) and not is_divergence(RuntimeError("else"))


def test_room_is_kept_for_the_last_words_on_a_full_disk(tmp_path, monkeypatch):
    """The disk is full, except for the space that the reserve gives back."""
    run, write = RunDirectory(tmp_path), directory.write_json
    with pytest.raises(OSError), claimed(run, "new"), run.recorded():
        kept = tmp_path / MARK
        assert kept.stat().st_size == RESERVE

        def write_where_room_is(path, value):
            if kept.stat().st_size:
                raise FULL
            write(path, value)

        monkeypatch.setattr(directory, "write_json", write_where_room_is)
        run.update(anything=1)
    assert run.read()["status"] == "failed"
    assert run.read()["reason"].startswith("the disk is full")
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]
