"""How early does each rule of the guard fire in runs that fail, and how often in runs that succeed?

    python -m tests.support.replay_guard recipes/studies/*/runs.parquet

Replays the rules over the kept runs of studies. A run succeeds if the right answers of its last
evaluation gain at least half of what the median run of its study gains over the first one. "After"
is the share of the run that had passed when the rule first fired, in the median failed run. Trials
of tuning, of which the evaluations alone are kept, are left out.
"""

import statistics
import sys
from collections import defaultdict
from pathlib import Path

from trl_ablate.guard.arguments import GuardArguments
from trl_ablate.guard.replaying import replay
from trl_ablate.metrics import EVAL_REWARD, READ_BY
from trl_ablate.study.kept_runs import kept
from trl_ablate.study.two_part import clopper_pearson

ANSWERS = "eval_answer_reward"


def main(files: list[str]) -> None:
    fired: dict[str, dict[bool, list[float]]] = defaultdict(lambda: {True: [], False: []})
    read: dict[str, dict[bool, int]] = defaultdict(lambda: {True: 0, False: 0})
    seen: set[str] = set()
    for file in files:
        runs = {name: run.rows for name, run in kept(Path(file)).items() if name not in seen}
        runs = {
            name: rows for name, rows in runs.items() if not all(EVAL_REWARD in r for r in rows)
        }
        seen |= {*runs}
        known = any(ANSWERS in row for rows in runs.values() for row in rows)
        answers = ANSWERS if known else EVAL_REWARD
        ends = {
            name: [row[answers] for row in rows if answers in row] for name, rows in runs.items()
        }
        ends = {name: values for name, values in ends.items() if len(values) > 1}
        if not ends:
            continue
        base = statistics.median(values[0] for values in ends.values())
        limit = (base + statistics.median(values[-1] for values in ends.values())) / 2
        for name, values in ends.items():
            rows = sorted(runs[name], key=lambda row: row["step"])
            succeeded, last = values[-1] >= limit, rows[-1]["step"]
            found = replay(rows, GuardArguments())
            for rule in {*READ_BY} - {*found.unread} - {*found.short}:
                read[rule][succeeded] += 1
            for rule in {alert.rule for alert in found.alerts}:
                first = min(alert.step for alert in found.alerts if alert.rule == rule)
                fired[rule][succeeded].append(first / last)
    sys.stdout.write(f"{len(seen)} runs\n\n")
    sys.stdout.write(
        "| rule | failed runs in which it fired | after | false alarms |\n|---|---|---|---|\n"
    )
    for rule in READ_BY:
        early, false = fired[rule][False], fired[rule][True]
        after = f"{statistics.median(early):.0%}" if early else "–"
        high = clopper_pearson(len(false), n)[1] if (n := read[rule][True]) else 1.0
        sys.stdout.write(
            f"| `{rule}` | {len(early)} of {read[rule][False]} | {after} | {len(false)} of {n} "
            f"(at most {high:.0%}) |\n"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
