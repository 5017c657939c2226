"""The model card: what was trained and how, what changed, and the results with their errors.

It depends on the run's records only, so that publishing again gives the same card; but a base or a
dataset that is a folder here is none of the Hub. No torch.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCardData
from jinja2 import Environment, StrictUndefined

from trl_ablate.hub.contents import BEST, PROGRAMS, FinishedRun, hub_id, without_folder
from trl_ablate.metrics import stderr_of
from trl_ablate.run.untrusted import (
    for_markdown,
    markdown_code,
    markdown_fence,
    markdown_table,
    on_one_line,
)

TEMPLATE = Path(__file__).with_name("card.md.j2")
TAGS = ("trl", "trl-ablate", "grpo", "reinforcement-learning")

Licence = Mapping[str, str | list[str]]
"""`license` of the Hub's metadata, or several, and `license_name` and `license_link` where it is
`other`."""

_NO_RESULT = re.compile(r"^[^/]*(_stderr|_runtime|_per_second)(/|$)")


def model_card(
    run: FinishedRun, repo_id: str, licence: Licence | None, *, picture: bool, branch: str = ""
) -> str:
    """README.md of the repository, or of a branch of it: metadata, then Markdown."""
    template = Environment(trim_blocks=False, undefined=StrictUndefined, keep_trailing_newline=True)
    template.filters |= {"md": _md, "code": _code, "fence": markdown_fence}
    record, config, settings = run.record, run.config["config"], run.config["settings"]
    named = ["recipe", "profile", "arm", "seed"] + ["study"] * bool(record.get("study"))
    space = config.get("trackio_space_id") or config.get("trackio_static_space_id")
    terms = licence or {}
    scaled = {"learning_rate_scale": 1.0} if "learning_rate_scale" in settings else {}
    shown = template.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        run=run,
        record={"reason": None, **record},
        repo_id=repo_id,
        revision=_revision(branch),
        base_revision=_revision(run.base_revision),
        metadata=_metadata(run, repo_id, licence).rstrip(),
        base=run.base,
        base_id=hub_id(run.base),
        named=", ".join(f"{key} {_code(record.get(key))}" for key in named),
        changes=_changes(run.config.get("changes") or {}, settings),
        results=_results(run),
        picture=picture,
        git={"commit": None, "changed": False, **(record.get("git") or {})},
        command=shlex.join(_command(record)),
        versions=_versions(record),
        settings=yaml.safe_dump({**settings, **scaled}, allow_unicode=True).rstrip(),
        terms=", ".join(_names(terms.get("license_name") or terms.get("license") or [])),
        space=space and hub_id(space if "/" in space else f"{repo_id.partition('/')[0]}/{space}"),
    )
    return run.masker.text(shown)


def _metadata(run: FinishedRun, repo_id: str, licence: Licence | None) -> str:
    base, dataset = hub_id(run.base), run.dataset
    data = ModelCardData(
        library_name="peft" if run.is_adapter else "transformers",
        pipeline_tag="text-generation",
        base_model=base,
        datasets=[dataset] if dataset else None,
        tags=list(TAGS),
        model_name=on_one_line(repo_id.rpartition("/")[2]),
        eval_results=_eval_results(run),
    )
    for key, value in (licence or {}).items():
        names = _names(value)
        data[key] = names if names[1:] else names[0]
    if base:
        data["base_model_relation"] = "adapter" if run.is_adapter else "finetune"
    return data.to_yaml()


def _names(value: str | list[str]) -> list[str]:
    return [on_one_line(str(one)) for one in (value if isinstance(value, list) else [value])]


def _eval_results(run: FinishedRun) -> list[EvalResult] | None:
    """The reward of the model at the repository's root, for the list that the Hub shows."""
    row = run.best_evaluation if run.chosen == BEST else next(reversed(run.evaluations), None)
    if row is None or row.get("eval_reward") is None or run.dataset is None:
        return None
    return [
        EvalResult(
            task_type="text-generation",
            dataset_type=run.dataset,
            dataset_name=run.config["task"]["dataset"],
            metric_type="reward",
            metric_name="reward per completion",
            metric_value=round(row["eval_reward"], 4),
        )
    ]


def _revision(name: str | None) -> str:
    return f", revision={json.dumps(name)}" if name else ""


def _changes(changes: Mapping[str, Sequence[Any]], settings: Mapping[str, Any]) -> str:
    """What the recipe declares, and what the run was trained with."""
    rows = [list(map(_cell, (key, *values, settings.get(key)))) for key, values in changes.items()]
    return markdown_table(("setting", "base", "recipe", "this run"), rows) if rows else ""


def _results(run: FinishedRun) -> str:
    """The first, the best and the last evaluation; empty if there was none."""
    if not run.evaluations:
        return ""
    first, best, last = run.evaluations[0], run.best_evaluation or {}, run.evaluations[-1]
    columns = {"first": first, "best": best, "last": last}
    header = ["metric", *(f"{name} (step {row['step']})" for name, row in columns.items())]
    metrics = [key for key in last if key.startswith("eval_") and not _NO_RESULT.search(key)]
    rows = [[_cell(one), *(_with_error(row, one) for row in columns.values())] for one in metrics]
    return markdown_table(header, rows)


def _with_error(row: Mapping[str, Any], metric: str) -> str:
    value, error = row.get(metric), row.get(stderr_of(metric))
    if not isinstance(value, (int, float)):
        return "–"
    shown = f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"
    return f"{shown} ± {error:.3f}" if isinstance(error, (int, float)) else shown


def _command(record: Mapping[str, Any]) -> list[str]:
    """The command without the folder of its program."""
    program, *words = [str(word) for word in record.get("command") or [""]]
    return [*PROGRAMS.get(without_folder(program), [program] if program else []), *words]


def _versions(record: Mapping[str, Any]) -> str:
    versions = {"python": record.get("python"), **(record.get("versions") or {})}
    known = [[_md(name), _md(version)] for name, version in versions.items() if version]
    return markdown_table(("package", "version"), known)


def _md(value: object) -> str:
    return for_markdown(str(value))


def _code(value: object) -> str:
    return markdown_code(str(value))


def _cell(value: object) -> str:
    return markdown_code(str(value), in_table=True)
