"""The program of a worker process that calls a user's reward function, one row at a time.

It is the grader's `worker.py` with other work: the protocol, the forks, the deadlines and the end
with the parent are the same. Started as a plain script; the last argument is JSON with the spec of
the reward and the parent's `sys.path`. A request is a row: pickled arguments as base64 text, which
the parent has written. The report is `{"reward": number or null}`, `{"error": text}` if the
function raised, or `{"wrong": text}` if it returned something other than one reward.
"""

import base64
import json
import pickle
import sys
from typing import Any

LONGEST_TEXT = 600
"""A report has to be one short line: longer ones are not written at once."""


class RewardWork:
    """A user's function, imported before the first fork."""

    def __init__(self, spec: dict[str, Any]) -> None:
        from trl_ablate.reward_specs import RewardSpec
        from trl_ablate.rewards.own.finding import calls_of

        self._calls = calls_of(RewardSpec(**spec))

    def warm_up(self) -> None:
        """Nothing to do: the import was the slow part."""

    def compare(self, packed: str) -> dict[str, Any]:
        from trl_ablate.errors import RewardError
        from trl_ablate.named_code import waited_for
        from trl_ablate.rewards.own.calling import checked, not_logged
        from trl_ablate.rewards.own.contained import in_this_process

        row = pickle.loads(base64.b64decode(packed))
        completion = row["completions"][0] if "completions" in row else None
        try:
            logs = {"log_metric": not_logged, "log_extra": not_logged}
            with in_this_process(self._calls.name, self._calls.file):
                output = waited_for(self._calls.function(**self._calls.arguments({**row, **logs})))
        except Exception as error:
            return {"error": self._calls.failure(error, completion)[:LONGEST_TEXT]}
        try:
            return {"reward": checked(self._calls.name, output, [completion])[0]}
        except RewardError as error:
            return {"wrong": str(error)[:LONGEST_TEXT]}


def main(arguments: list[str]) -> None:
    given = json.loads(arguments[3])
    sys.path[:] = given["path"]
    from trl_ablate.rewards.grading import worker

    worker.main(arguments[:3], lambda: RewardWork(given["spec"]))


if __name__ == "__main__":
    main(sys.argv[1:])
