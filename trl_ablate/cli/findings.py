"""Write FINDINGS.md and README's section on answers from the report.json of the studies in a list.

LIST names the questions and their studies, which are folders beside it; default: the shipped one.
Studies without a report appear as not run yet. Templates beside it (FINDINGS.md.j2 and others) are
pages of its own.

examples:
  trl-ablate study run --all --until decided --runs runs
  trl-ablate findings --runs runs
  trl-ablate findings my_studies/findings.yaml
"""

import argparse
import shutil
from pathlib import Path

from trl_ablate.cli.parsing import command, option
from trl_ablate.cli.terminal import console
from trl_ablate.errors import ConfigurationError
from trl_ablate.recipe.places import PACKAGE, SHIPPED


@command(
    option("list", metavar="LIST", nargs="?", type=Path, help="a findings.yaml"),
    option(
        "--runs",
        metavar="FOLDER",
        type=Path,
        help="first write the reports of these runs, and keep the runs beside them",
    ),
    stopped="the pages were not written",
)
def main(options: argparse.Namespace) -> None:
    from trl_ablate.study.questions_list import LIST

    chosen = options.list or LIST
    is_shipped = chosen.resolve() == LIST.resolve()
    if is_shipped and SHIPPED.is_relative_to(PACKAGE):
        raise ConfigurationError(
            "the shipped list belongs to an installed package, which is not written to; copy "
            f"{SHIPPED / 'studies'} and give the copy's findings.yaml"
        )
    if options.runs is not None:
        if not options.runs.is_dir():
            raise ConfigurationError(f"--runs {options.runs} is not a folder; name one with runs")
        write_reports(chosen, options.runs)
    for path in write_pages(chosen, SHIPPED.parent / "README.md" if is_shipped else None):
        console.print(str(path))


def write_reports(chosen: Path, runs: Path) -> None:
    """The reports of the studies of a list of which every arm has a run; beside them their finished
    runs, and their X-rays. Runs that are kept beside a study are put back first."""
    from trl_ablate.cli.study_runs import files_of, known
    from trl_ablate.study.kept_runs import beside, keep, restore
    from trl_ablate.study.questions_list import read_findings, study_file
    from trl_ablate.study.report.found_answers import read_report
    from trl_ablate.study.report.making import report_study
    from trl_ablate.study.xray_file import XRAY, xray_folder

    asked = [row for row in read_findings(chosen) if not row.replaced_by]
    current = {study_file(chosen, study) for row in asked for study in row.studies}
    for file in files_of(chosen):
        report = read_report(file.parent)
        if report and file not in current:
            continue  # it is replaced, and its report stays as it is
        study = known(file, runs)
        plan, store = study.plan, study.store
        restore(study, beside(file), console.print)
        xray = xray_folder(store, plan.study) / XRAY
        if xray.is_file():
            shutil.copyfile(xray, file.parent / XRAY)
        states = study.states
        if any(all(states[run.id].status == "to do" for run in arm.runs) for arm in plan.arms):
            continue
        finished = sum(arm.ended for arm in study.analysis.arms)
        before = (report or {}).get("details", {}).get("runs", 0)
        if finished < before:
            console.print(
                f"report of {plan.study}: left as it is; it rests on {before} runs, and {runs} has "
                f"{finished} of them"
            )
            continue
        report_study(plan, store, file, file.parent)
        keep(study, beside(file))
        console.print(f"report of {plan.study}: {len(study.done)} runs")


def write_pages(chosen: Path, readme: Path | None) -> list[Path]:
    """Write the pages beside the list, and the section of README; returns the written files."""
    from trl_ablate.study.report import findings_page as page
    from trl_ablate.study.report.answer_pictures import draw_answers, draw_scales
    from trl_ablate.study.report.xray_outcomes import pairs_of_answers, scatter

    found, compared, pages = pages_of(chosen, readme)
    pairs = pairs_of_answers(found)
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
    drawn = {
        page.PICTURE: draw_answers(page.answered_arms(found)),
        page.SCATTER: pairs and scatter(pairs),
        page.SCALES: compared and draw_scales(compared),
    }
    pictures = {chosen.parent / name: picture for name, picture in drawn.items() if picture}
    for path, picture in pictures.items():
        path.write_bytes(picture)
    return [*pages, *pictures]


def pages_of(chosen: Path, readme: Path | None):
    """The answers, the contrasts with published runs, and the text of every page by its file."""
    from trl_ablate.study.questions_list import read_findings
    from trl_ablate.study.report import findings_page as page
    from trl_ablate.study.report.found_answers import find

    folder = chosen.parent
    found, compared = find(read_findings(chosen), folder), page.contrasts(folder)
    texts = page.findings_pages(found, compared, folder)
    pages = {folder / name: text for name, text in texts.items()}
    section = page.readme_section(compared)
    if readme is not None and section is not None:
        pages[readme] = page.with_section(readme.read_text(encoding="utf-8"), section)
    return found, compared, pages
