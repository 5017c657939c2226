"""Write the table of worlds × switches from the runs of a study, which may still be running.

The study's arms are called WORLD.SWITCH; `against` in it names the arm of the
same world that each is compared with.

examples:
  trl-ablate study run leverage --runs runs
  trl-ablate leverage --runs runs --out LEVERAGE.md
"""

import argparse
import shlex
from pathlib import Path

from trl_ablate.cli.parsing import RUNS, check_writable, command, flag, option
from trl_ablate.cli.study_runs import known
from trl_ablate.cli.terminal import console


@command(
    option(
        "study", metavar="STUDY", nargs="?", default="leverage",
        help="a study's name, a study.yaml, or its folder; default: leverage",
    ),
    RUNS,
    option("--profile", help="profile to use instead of the study's own"),
    option(
        "--out", metavar="FILE", type=Path, default=Path("LEVERAGE.md"),
        help="page to write; default: LEVERAGE.md",
    ),
    flag("--keep_runs", "keep the finished runs beside the study, as `findings --runs` does"),
    stopped="the page was not written",
)  # fmt: skip
def main(options: argparse.Namespace) -> None:
    from trl_ablate.recipe.places import study_path
    from trl_ablate.study.kept_runs import beside, keep
    from trl_ablate.study.report.curves import planned_runs
    from trl_ablate.study.report.document import write_markdown
    from trl_ablate.study.report.worlds_table import leverage_page

    check_writable("--out", options.out)
    runs = known(options.study, options.runs, options.profile)
    profile = ["--profile", options.profile] if options.profile else []
    study = shlex.join([options.study, *profile])
    command = f"trl-ablate study run {study}; trl-ablate leverage {study}"
    page = leverage_page(runs.plan, planned_runs(runs.plan, runs.store), command)
    options.out.write_text(write_markdown(page), encoding="utf-8")
    if options.keep_runs:
        keep(runs, beside(study_path(options.study)))
    console.print(str(options.out))
