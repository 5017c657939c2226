"""`bench gpu` without a GPU: its runner over planted parts, its page, its command line."""

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from importlib import import_module
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
import torch

from tests.conftest import REPOSITORY
from tests.support.studies import wait_for
from tests.unit.cli.conftest import signals_as_before  # noqa: F401
from trl_ablate.bench.gpu import comparisons
from trl_ablate.bench.gpu import parts as gpu
from trl_ablate.bench.gpu.parts import PARTS, NotHere, Part, Results, Setup, check_card, page
from trl_ablate.bench.timing import Measured
from trl_ablate.cli import bench
from trl_ablate.errors import ConfigurationError
from trl_ablate.trainer.temporary import replaced

TOY = Setup("cpu", True)

PLANTED = {
    "good": "return Found([{'what': 'x', 's': 0.5}], {'it holds': True}, {'ratio': 2.0})",
    "wrong": "return Found([{'what': 'x', 's': 0.5}], {'it holds': True, 'so does this': False})",
    "absent": "raise NotHere('there is no engine')",
    "raises": "raise ValueError('a | bar and a `tick`')",
    "refused": "raise ConfigurationError('give another value')",
    "hangs": "import subprocess, time; subprocess.Popen(['sleep', '300']); time.sleep(300)",
    "killed": "import os; print('before', flush=True); os.kill(os.getpid(), 9)",
    "exits": "import os; os._exit(3)",
    "sized": "return Found([{'what': setup.device, 'toy': setup.toy}])",
}
LIMITS = {name: Part("planted", name, 2.0 if name == "hangs" else 60.0) for name in PLANTED}
HEAD = """
from trl_ablate.bench.gpu.parts import Found, NotHere
from trl_ablate.errors import ConfigurationError
"""
START = """
import sys, planted
from trl_ablate.bench.gpu import parts
parts.PARTS = {sys.argv[1]: parts.Part("planted", "", 1.0)}
parts.measure_into(*sys.argv[1:])
"""


@pytest.fixture
def start(tmp_path):
    """Starts a planted part as `fresh` starts a real one; notes its name."""
    parts = [f"def {name}(setup):\n    {code}\n" for name, code in PLANTED.items()]
    (tmp_path / "planted.py").write_text("\n\n".join([HEAD, *parts]))
    path = os.pathsep.join([str(tmp_path), str(REPOSITORY)])

    def begin(part, setup, result, log):
        begin.started.append(part)
        words = [sys.executable, "-c", START, part, setup.device, str(int(setup.toy)), str(result)]
        how = {"stdout": log, "stderr": log, "start_new_session": True}
        begin.processes.append(subprocess.Popen(words, env=begin.environment, **how))
        return begin.processes[-1]

    begin.started, begin.processes = [], []
    begin.environment = {**os.environ, "PYTHONPATH": path}
    return begin


def measured(tmp_path, start, *names, budget=100.0, results=None):
    results = results or Results(tmp_path / "gpu.json", TOY)
    with replaced(gpu, PARTS=LIMITS, fresh=start):
        gpu.run(names, results, budget, tell=print)
    return json.loads(results.file.read_text())["parts"]


@pytest.mark.slow
def test_a_failure_in_one_part_does_not_stop_the_rest_and_is_repeated_if_continued(tmp_path, start):
    reasons = {
        "raises": ("failed", "ValueError: a | bar and a `tick`"),
        "killed": ("failed", "killed by SIGKILL without a result; its last line: before"),
        "exits": ("failed", "ended with code 3 without a result"),
        "refused": ("failed", "give another value"),
        "absent": ("skipped", "there is no engine"),
        "wrong": ("wrong", "does not hold: so does this"),
        "good": ("ok", ""),
    }
    parts = measured(tmp_path, start, *reasons)
    found = {name: (one["status"], one.get("reason")) for name, one in parts.items()}
    assert list(found.items()) == list(reasons.items())
    assert parts["good"]["rows"] == [{"what": "x", "s": 0.5}] and parts["good"]["seconds"] > 0
    assert "Traceback" in parts["raises"]["log"] and parts["killed"]["log"] == "before\n"
    assert "log" not in parts["good"]
    results = Results.continued(tmp_path / "gpu.json", TOY)
    start.started.clear()
    parts = measured(tmp_path, start, "good", "raises", "absent", "sized", results=results)
    assert start.started == ["sized", "raises"]  # what failed before comes last
    assert list(parts) == [*reasons, "sized"]
    assert parts["sized"]["rows"] == [{"what": "cpu", "toy": True}]
    with pytest.raises(ConfigurationError, match="holds no results of device cuda with toy=False"):
        Results.continued(tmp_path / "gpu.json", Setup("cuda", False))
    assert Results.continued(tmp_path / "new.json", TOY).parts == {}


@pytest.mark.slow
def test_a_part_that_hangs_is_killed_with_all_that_it_started(tmp_path, start):
    parts = measured(tmp_path, start, "hangs", "good")
    assert parts["hangs"]["reason"] == "not finished after 2 s; killed"
    assert parts["hangs"]["seconds"] < 20
    assert parts["good"]["status"] == "ok"
    assert not any(map(running_in_group_of, start.processes))


def test_a_microbatch_that_does_not_fit_keeps_the_smaller_ones(monkeypatch):
    weight = torch.zeros(1)

    def trained(setup, load, ways, model):
        if load.microbatch > 4:
            raise torch.OutOfMemoryError
        return {name: Measured([1.0], grad_norms=[2.0], weights=[weight]) for name in ways}

    monkeypatch.setattr(comparisons, "trained", trained)
    monkeypatch.setattr(comparisons, "random_model", lambda setup: None)
    for part, count in ((comparisons.packing, 5), (comparisons.microbatches, 2)):
        rows = part(TOY).rows
        assert len(rows) == count and "peak GiB" in rows[-2]
        assert rows[-1] == {"what": "microbatch of 16", "s/step": "out of memory"}


@pytest.mark.slow
def test_a_part_ends_with_what_it_started_if_the_command_is_killed(tmp_path, start):
    words = [sys.executable, "-c", START, "hangs", "cpu", "1", str(tmp_path / "result")]
    code = (
        f"from subprocess import *; Popen({words}, start_new_session=True, stdout=DEVNULL).wait()"
    )
    command = subprocess.Popen([sys.executable, "-c", code], env=start.environment)
    there = psutil.Process(command.pid)
    part, _ = wait_for(lambda: len(found := there.children(recursive=True)) == 2 and found, 60)
    assert running_in_group_of(part, seconds=0)
    command.kill()
    command.wait()
    assert not running_in_group_of(part)


def running_in_group_of(process: Any, seconds: float = 10) -> list[psutil.Process]:
    """What runs of the process and of what it started, which have these seconds to end."""
    found = []
    for each in psutil.process_iter():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getpgid(each.pid) == process.pid and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each)
    return psutil.wait_procs(found, timeout=seconds)[1]


def test_the_budget_limits_a_part_and_the_number_of_parts(tmp_path, start):
    passed = [0.0]

    def run_one(name, setup, seconds):
        passed.append(passed[-1] + seconds)
        return {"status": "failed", "reason": "planted", "seconds": seconds}

    clock = SimpleNamespace(monotonic=lambda: passed[-1])
    with replaced(gpu, time=clock, _run_one=run_one):
        parts = measured(tmp_path, start, "good", "wrong", "sized", budget=100.0)
    assert passed == [0.0, 60.0, 100.0]
    assert parts["sized"]["status"] == "not run"
    assert parts["sized"]["reason"] == "the budget of 100 s is used up"


def test_a_signal_kills_the_part_keeps_the_finished_and_prints_how_to_continue(
    tmp_path, start, monkeypatch, capsys
):
    output = tmp_path / "my gpu.json"

    def begin(part, setup, result, log):
        if part == "step":
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
        return start("hangs" if part == "step" else "good", setup, result, log)

    monkeypatch.setattr(gpu, "fresh", begin)
    words = ["gpu", "--device", "cpu", "--toy", "--parts", "gradients", "step", "--output"]
    assert bench.main([*words, str(output)]) == 130
    printed = capsys.readouterr()
    given = "gpu --device cpu --toy --parts gradients step --output"
    assert f"continue with: trl-ablate bench {given} '{output}' --resume\n" in printed.out
    assert printed.err == "stopped by SIGTERM; only finished parts of `bench gpu` are kept\n"
    parts = json.loads(output.read_text())["parts"]
    assert {name: one["status"] for name, one in parts.items()} == {"gradients": "ok"}
    assert not running_in_group_of(start.processes[-1])


@pytest.mark.parametrize(("planted", "code"), [("absent", 0), ("wrong", 1)])
def test_the_exit_code(tmp_path, start, monkeypatch, planted, code):
    monkeypatch.setattr(gpu, "fresh", lambda part, *more: start(planted, *more))
    words = ["--device", "cpu", "--toy", "--parts", "head", "--output", str(tmp_path / "gpu.json")]
    assert bench.main(["gpu", *words]) == code
    assert "| head | " in (tmp_path / "gpu.md").read_text()


def test_the_page_of_results():
    made = {"machine": "a card", "commit": "abc"}
    head = {"status": "wrong", "seconds": 12.3, "reason": "a | bar", **made,
            "rows": [{"what": "one", "s": 0.12345}, {"what": "two", "MB": 3}],
            "checks": {"this": True, "that": False}, "facts": {"ratio": 2.0}}  # fmt: skip
    step: Any = {"status": "skipped", "seconds": 0.0, "reason": "no engine", **made}
    written = {"device": "cuda", "toy": False, "parts": {"head": head, "step": step}}
    assert page(written) == (
        "# bench gpu: cuda, full size\n\n"
        "Made on a card, commit abc.\n\n"
        "| part | result | s | what | why |\n"
        "| --- | --- | --- | --- | --- |\n"
        f"| head | wrong | 12.3 | {PARTS['head'].shows} | a \\| bar |\n"
        f"| step | skipped | 0 | {PARTS['step'].shows} | no engine |\n\n"
        "## head\n\n"
        "| what | s | MB |\n"
        "| --- | --- | --- |\n"
        "| one | 0.1235 |  |\n"
        "| two |  | 3 |\n\n"
        "- ratio: 2\n- this: yes\n- that: NO\n"
    )
    step["machine"] = "another"
    assert "Made on" not in (two := page(written))
    assert " | a card, commit abc |\n" in two and " | no engine | another, commit abc |\n" in two


@pytest.mark.parametrize(("gib", "skipped"), [(16, 8), (24, 7), (39, 7), (79, 0)])
def test_parts_that_a_card_is_too_small_for_are_skipped(monkeypatch, gib, skipped):
    card = SimpleNamespace(total_memory=gib * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: card)
    left = len(PARTS)
    for part in PARTS.values():
        check_card(part, TOY)
        with suppress(NotHere):
            check_card(part, Setup("cuda", False))
            left -= 1
    assert left == skipped


def test_every_part_is_there_and_sees_no_gpu_on_a_cpu(monkeypatch, tmp_path):
    assert all(callable(getattr(import_module(part.home), name)) for name, part in PARTS.items())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.setattr(gpu.subprocess, "Popen", lambda words, env, **how: env)
    for setup, seen in ((TOY, ""), (Setup("cuda", False), "3")):  # TRL takes one a process
        found: Any = gpu.fresh("head", setup, tmp_path / "x", cast(Any, None))
        assert found["CUDA_VISIBLE_DEVICES"] == seen
