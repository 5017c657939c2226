"""Hostile texts in every place that shows text: report, page, pictures, card, terminal.

The corpus is `tests/support/hostile.py`. Each place gets a text in every field that comes from
elsewhere, and must keep the structure that it has with a harmless word. What makes texts safe is
tried out with all of them in `tests/unit/run/test_untrusted.py`.
"""

import io
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from tests.support.finished_run import finished_run
from tests.support.hostile import FEW, HOSTILE, MARKDOWN, UNSAFE, kinds
from tests.support.synthetic_study import METRIC, learning_rows, make_plan, write_run
from trl_ablate.cli import evaluate, terminal
from trl_ablate.estimates import by_group
from trl_ablate.hub.card import model_card
from trl_ablate.hub.contents import read_run
from trl_ablate.metrics import stderr_of
from trl_ablate.recipe.places import PACKAGE
from trl_ablate.run.untrusted import SafeConsole, for_terminal
from trl_ablate.study.outline import grid, show_plan
from trl_ablate.study.report.making import report_study
from trl_ablate.study.runs import StudyRuns
from trl_ablate.study.store import RunStore
from trl_ablate.trainer.one_shot import of_question

WORD = "word"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
ALL = pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)


def group_metrics(text: str) -> dict[str, float]:
    """The metrics of an evaluation by a column with the text: their names hold it."""
    row = {"reward": 0.5, "length": 3, "truncated": False, **of_question({"level": text}, "level")}
    return {f"eval_{name}": value for name, value in by_group([row] * 2, 1, "level").items()}


def reported(folder: Path, text: str) -> Path:
    """The report of a study with the text in every name, note, setting, reason and rollout."""
    first, second = f"one {text}", f"two {text}"
    plan = make_plan({first: {"top": 0.6}, second: {"top": 0.7}}, seeds=(0, 1))
    said, metric = {"stop": text}, f"{METRIC}/level={text}"

    def named(run):
        return replace(run, words=("arm.yaml", *run.words[1:], f"--stop={text}"))

    arms = tuple(
        replace(
            arm, recipe=f"{text}.yaml", declared=arm.declared | said, values=arm.values | said,
            inert=said, warnings=(text,), runs=tuple(map(named, arm.runs)),
        )
        for arm in plan.arms
    )  # fmt: skip
    plan = replace(
        plan, study=f"s {text}", question=f"q {text}", seeds_answer=f"a {text}", base=text,
        notes=(f"n {text}",), profile=f"p {text}", profile_reason=text, arms=arms,
        against={second: first}, primary_metric=metric,
    )  # fmt: skip
    store = RunStore(folder / "runs")
    names = {METRIC: metric, f"{METRIC}_stderr": stderr_of(metric)}
    rollouts = [{"prompt": text, "response": text, "ground_truth": text, "reward": 1.0}]
    for number, arm in enumerate(plan.arms):
        for run in arm.runs:
            learned = learning_rows(10 * number + run.seed, 0.6)
            rows = ({names.get(key, key): row[key] for key in row} for row in learned)
            settings = {"top": arm.declared["top"]}
            write_run(store, run, settings, rows, rollouts=rollouts).update(
                status="failed" if run.seed else "finished", reason=f"r {text}" * run.seed or None,
                git={"commit": text or "c", "diff": ""}, versions={"trl": text}, python=text,
                gpu=text, profile=f"p{number} {text}",
            )  # fmt: skip
    report_study(plan, store, folder / "study.yaml", folder / "out")
    return folder / "out"


@pytest.fixture(scope="module")
def harmless(tmp_path_factory) -> Path:
    return reported(tmp_path_factory.mktemp("harmless"), WORD)


def tags(page: str) -> list[tuple[str, list[str]]]:
    """The start tags of a page, with the names of their attributes."""
    found, parser = [], HTMLParser()
    parser.handle_starttag = lambda tag, attrs: found.append((tag, [name for name, _ in attrs]))
    parser.feed(page)
    parser.close()
    return found


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", FEW)
def test_a_report_keeps_its_structure(tmp_path, harmless, name):
    out = reported(tmp_path, HOSTILE[name])
    markdown, page = ((out / name).read_text("utf-8") for name in ("REPORT.md", "report.html"))
    assert kinds(markdown) == kinds((harmless / "REPORT.md").read_text("utf-8"))
    inside = {c.type for t in MARKDOWN.parse(markdown) for c in t.children or ()}
    assert inside <= {"text", "image", "code_inline"}
    assert tags(page) == tags((harmless / "report.html").read_text("utf-8"))
    assert not UNSAFE.search(markdown) and not UNSAFE.search(page)
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")


MIX = "aB3dE6gH9jK2mN5pQ8rS1tU4vW7xY0zA2bC5dE8fG"
PLANTED = ("sk-ant-api03-" + MIX, "github_pat_" + MIX, "AKIAQWERTYUIOP123456", "hf_" + MIX[:34],
           "me:s3cret-w0rd")  # fmt: skip


def test_no_report_holds_a_token_of_a_rollout_a_reason_or_a_command(tmp_path):
    out = reported(tmp_path, " and ".join([*PLANTED[:4], f"https://{PLANTED[4]}@example.org"]))
    files = {file.name: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    assert {"REPORT.md", "report.html"} <= files.keys()
    assert not [name for name in files for one in PLANTED if one.encode() in files[name]]


def card_of(folder: Path, text: str) -> tuple[dict, str]:
    """The metadata and the Markdown of the card of a run with the text in every field of its
    records that can contain it."""
    run = read_run(finished_run(folder))
    run.record.update(
        reason=f"r {text}", recipe=text, profile=text, arm=f"a {text}", seed=text,
        study=text or "s", python=f"3 {text}", versions={"trl": f"v {text}"},
        command=["scripts/train.py", f"--x={text}"], git={"commit": f"c {text}", "changed": True},
    )  # fmt: skip
    run.config.update(
        changes={"stop": [text, [text]]}, settings={"stop": text},
        config={"trackio_space_id": f"me/{text}"},
        task={**run.config["task"], "eval_split": text},
        model={"model_name_or_path": f"m{text}/n" if "/" not in text else text},
    )  # fmt: skip
    row = {"step": 2, "grpo_step": 2, "seconds": 2.0, "eval_reward": 0.5, **group_metrics(text)}
    run.rows[:] = [row]
    licence = {"license": "other", "license_name": f"l {text}", "license_link": f"k {text}"}
    card = model_card(run, "me/x", licence, picture=True)
    assert card.startswith("---\n") and not UNSAFE.search(card) and card.encode()
    metadata, _, body = card.removeprefix("---\n").partition("\n---\n")
    return yaml.safe_load(metadata), body


def keys(value) -> object:
    if isinstance(value, dict):
        return {key: keys(item) for key, item in value.items() if "base_model" not in key}
    return [keys(item) for item in value] if isinstance(value, list) else type(value).__name__


@pytest.mark.sample(12)
@ALL
def test_a_card_keeps_its_metadata_and_its_structure(tmp_path, text):
    (metadata, body), (usual, harmless) = (
        card_of(tmp_path / name, one) for name, one in {"run": text, "harmless": WORD}.items()
    )
    assert keys(metadata) == keys(usual)
    structure, expected = (kinds(one.split("\n## Dashboard")[0]) for one in (body, harmless))
    assert structure == expected


def test_a_name_with_markup_is_no_link_to_the_hub(tmp_path):
    body = MARKDOWN.render(card_of(tmp_path, "x](https://evil.example)")[1])
    assert 'href="https://evil' not in body and 'href="https://huggingface.co' in body


def show_run_and_study(console: SafeConsole, text: str, folder: Path) -> None:
    resolved = SimpleNamespace(
        recipe=Path(f"r{text}"), profile=text, profile_reason=text, warnings=[text],
        settings={f"k{text}": text}, layers={f"k{text}": text},
        changes={text: (text, text)}, inert={text: text},
    )  # fmt: skip
    terminal.show_recipe(resolved, everything=True)
    groups = {name.removeprefix("eval_"): one for name, one in group_metrics(text).items()}
    metrics = {"metrics": {"reward": 0.5, **groups}, "standard_errors": {"reward": 0.1}}
    console.print(evaluate.table({f"s {text}": {"questions": 1, **metrics}}, title=text))
    plan = make_plan({f"one {text}": {"top": 0.6}, f"two {text}": {"top": 0.7}})
    plan = replace(plan, study=text, question=text, profile=text, notes=(text,), base=text)
    runs = StudyRuns(plan, RunStore(folder / "runs"))
    show_plan(console, runs, 1)
    console.print(grid(runs))


@ALL
def test_a_terminal_shows_texts_as_they_are(tmp_path, monkeypatch, text):
    file = io.StringIO()
    console = SafeConsole(file=file, force_terminal=True, color_system="truecolor", width=5000)
    monkeypatch.setattr(terminal, "console", console)
    show_run_and_study(console, text, tmp_path)
    console.print(text)
    seen = COLOURS.sub("", file.getvalue())
    assert not UNSAFE.search(seen)
    seen.encode()
    for line in for_terminal(text).split("\n"):
        words = line.split()
        assert not words or seen.count(words[0]) >= 10


def test_no_command_prints_on_another_console():
    others = re.compile(r"(?<!\w)Console\(")
    assert not [file for file in PACKAGE.rglob("*.py") if others.search(file.read_text("utf-8"))]
