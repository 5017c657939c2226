"""How early does each rule of the guard fire in runs that fail, and how often in runs that succeed?

    python -m tests.support.replay_guard recipes/studies/*/runs.parquet

Replays the rules over the kept runs of studies. A run succeeds if the right answers of its last
evaluation gain at least half of what the median run of its study gains over the first one. "After"
is the share of the run that had passed when the rule first fired, in the median failed run.
"""

import statistics
import sys
from collections import defaultdict

import pandas as pd

from trl_ablate.guard.arguments import GuardArguments
from trl_ablate.guard.rules import replay
from trl_ablate.metrics import EVAL_REWARD, READ_BY
from trl_ablate.study.two_part import clopper_pearson

ANSWERS = "eval_answer_reward"


def main(files: list[str]) -> None:
    fired: dict[str, dict[bool, list[float]]] = defaultdict(lambda: {True: [], False: []})
    read: dict[str, dict[bool, int]] = defaultdict(lambda: {True: 0, False: 0})
    seen: set[str] = set()
    for file in files:
        table = pd.read_parquet(file).drop(columns=["settings", "record"])
        runs = {name: rows for name, rows in table.groupby("run", sort=False) if name not in seen}
        seen |= {*runs}
        answers = ANSWERS if ANSWERS in table else EVAL_REWARD
        ends = {name: rows[answers].dropna() for name, rows in runs.items()}
        ends = {name: values for name, values in ends.items() if len(values) > 1}
        if not ends:
            continue
        base = statistics.median(values.iloc[0] for values in ends.values())
        limit = (base + statistics.median(values.iloc[-1] for values in ends.values())) / 2
        for name, values in ends.items():
            rows = [row.dropna().to_dict() for _, row in runs[name].sort_values("step").iterrows()]
            succeeded, last = bool(values.iloc[-1] >= limit), rows[-1]["step"]
            found = replay(rows, GuardArguments())
            for rule in {*READ_BY} - {*found.unread} - {*found.short}:
                read[rule][succeeded] += 1
            for rule in {alert.rule for alert in found.alerts}:
                first = min(alert.step for alert in found.alerts if alert.rule == rule)
                fired[rule][succeeded].append(first / last)
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
