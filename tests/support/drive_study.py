"""Runs a made-up study with the fake training: `drive_study.py RUNS ARMS_JSON [OPTIONS]`.

A process of its own, so that tests can kill it; ends as `trl-ablate study run` does.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.synthetic_study import make_plan  # noqa: E402
from trl_ablate.run.termination import Termination  # noqa: E402
from trl_ablate.study.engines import Engine  # noqa: E402
from trl_ablate.study.engines.local import LocalEngine  # noqa: E402
from trl_ablate.study.planned import Plan  # noqa: E402
from trl_ablate.study.runner import Runner
from trl_ablate.study.runs import StudyRuns  # noqa: E402
from trl_ablate.study.store import RunStore  # noqa: E402

FAKE_PROGRAM = (str(Path(__file__).with_name("fake_train.py")),)
FAKE_TRAIN = (sys.executable, *FAKE_PROGRAM)
FAKE_IMPORTS = ("trl_ablate.run.checkpoints", "trl_ablate.study.report.curves")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", type=Path)
    parser.add_argument("arms", type=json.loads)
    parser.add_argument("--only", action="append")
    parser.add_argument("--ray_address")
    parser.set_defaults(jobs=None, cpus_per_run=1, keep_checkpoints=False)
    options = parser.parse_args()
    Termination().listen()
    runs = StudyRuns(make_plan(options.arms), RunStore(options.runs))
    try:
        outcome = Runner(runs, engine(options, runs.plan), only=options.only, say=say).run()
    except KeyboardInterrupt:
        return 130
    return 1 if outcome.failed else 3 if outcome.left else 0


def engine(options: argparse.Namespace, plan: Plan) -> Engine:
    if options.ray_address is None:
        return LocalEngine(jobs=2, command=FAKE_TRAIN, warm=FAKE_IMPORTS)
    from trl_ablate.study.engines import shipping
    from trl_ablate.study.engines.ray import RayEngine

    shipping.PROGRAM = FAKE_PROGRAM
    return RayEngine(options, plan)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
