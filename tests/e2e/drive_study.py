"""Runs a made-up study with the fake training: `drive_study.py RUNS ARMS_JSON [MAX_HOURS]`.

A process of its own, so that tests can kill it; ends as `scripts/study.py run` does.
"""

import json
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.synthetic_study import make_plan  # noqa: E402
from trl_ablate.study.engines import LocalEngine  # noqa: E402
from trl_ablate.study.runner import Runner  # noqa: E402
from trl_ablate.study.store import RunStore  # noqa: E402

FAKE_TRAIN = Path(__file__).with_name("fake_train.py")


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    runs, arms = Path(sys.argv[1]), json.loads(sys.argv[2])
    max_hours = float(sys.argv[3]) if len(sys.argv) > 3 else None
    engine = LocalEngine(jobs=2, train=FAKE_TRAIN)
    runner = Runner(make_plan(arms), RunStore(runs), engine, max_hours=max_hours, say=say)
    try:
        outcome = runner.run()
    except KeyboardInterrupt:
        return 130
    return 1 if outcome.failed else 3 if outcome.left else 0


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
