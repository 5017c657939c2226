"""How early does each rule of the guard fire in runs that fail, and how often in runs that succeed?

    python -m tests.support.replay_guard recipes/studies/*/runs.parquet

Replays the rules over the kept runs of studies. A run succeeds if the right answers of its last
evaluation gain at least half of what the median run of its study gains over that at step 0, or over
0 where none was made. "After" is the share of the run that had passed when the rule first fired, in
the median failed run. Trials of tuning, of which the evaluations alone are kept, are left out.
"""

import statistics
import sys
from collections import Counter, defaultdict
from pathlib import Path

from trl_ablate.guard.arguments import GuardArguments
from trl_ablate.guard.replaying import replay
from trl_ablate.metrics import EVAL_REWARD, READ_BY
from trl_ablate.run.untrusted import markdown_table
from trl_ablate.study.kept_runs import kept
from trl_ablate.study.two_part import clopper_pearson

ANSWERS = "eval_answer_reward"
HEADER = ("rule", "failed runs in which it fired", "after", "false alarms")


def main(files: list[str]) -> None:
    fired: dict[tuple[str, bool], list[float]] = defaultdict(list)
    read: Counter[tuple[str, bool]] = Counter()
    seen: set[str] = set()
    for file in files:
        runs = {
            name: sorted(run.rows, key=lambda row: row["step"])
            for name, run in kept(Path(file)).items()
            if name not in seen and not all(EVAL_REWARD in row for row in run.rows)
        }
        seen |= {*runs}
        known = any(ANSWERS in row for rows in runs.values() for row in rows)
        metric = ANSWERS if known else EVAL_REWARD
        evaluated = {name: [r for r in rows if metric in r] for name, rows in runs.items()}
        curves = {
            name: [0.0 if rows[0]["step"] else rows[0][metric], rows[-1][metric]]
            for name, rows in evaluated.items() if len(rows) > 1
        }  # fmt: skip
        if not curves:
            continue
        ends = [statistics.median(values[end] for values in curves.values()) for end in (0, -1)]
        for name, values in curves.items():
            rows, succeeded = runs[name], values[-1] >= statistics.fmean(ends)
            found = replay(rows, GuardArguments())
            read.update((rule, succeeded) for rule in {*READ_BY} - {*found.unread, *found.short})
            for rule in {alert.rule for alert in found.alerts}:
                first = min(alert.step for alert in found.alerts if alert.rule == rule)
                fired[rule, succeeded].append(first / rows[-1]["step"])
    rows = []
    for rule in READ_BY:
        early, false, n = fired[rule, False], fired[rule, True], read[rule, True]
        after = f"{statistics.median(early):.0%}" if early else "–"
        high = clopper_pearson(len(false), n)[1] if n else 1.0
        found = f"{len(early)} of {read[rule, False]}"
        rows.append((f"`{rule}`", found, after, f"{len(false)} of {n} (at most {high:.0%})"))
    sys.stdout.write(f"{len(seen)} runs\n\n{markdown_table(HEADER, rows)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
