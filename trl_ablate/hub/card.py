"""The model card: what was trained and how, what changed, and the results with their errors.

It depends on the run's records only, so that publishing again gives the same card. No torch.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCardData

from trl_ablate.hub.contents import BEST, LAST, FinishedRun
from trl_ablate.metrics import stderr_of
from trl_ablate.reward_specs import GYM
from trl_ablate.run.untrusted import (
    for_markdown,
    markdown_code,
    markdown_fence,
    markdown_table,
    on_one_line,
)

PICTURE = "curves.png"
TAGS = ("trl", "trl-ablate", "grpo", "reinforcement-learning")
MINIATURE = "miniature"
MINIATURE_LICENCE = {"license": "apache-2.0"}
"""The miniature is made by this package, and has the same licence."""

Licence = Mapping[str, str]
"""`license` of the Hub's metadata, and `license_name` and `license_link` where it is `other`."""

_HUB_ID = re.compile(r"(?!\.)[\w.-]+/[\w.-]+", re.ASCII)
_NO_RESULT = re.compile(r"^[^/]*(_stderr|_runtime|_per_second)(/|$)")


def model_card(run: FinishedRun, repo_id: str, licence: Licence | None, *, picture: bool) -> str:
    """README.md of the repository: metadata, then Markdown."""
    sections = [
        f"# {for_markdown(run.name)}\n\n{_summary(run)}",
        _usage(run, repo_id),
        _changes(run),
        _results(run, picture),
        _reproduce(run),
        _files(run),
        _licence_and_data(run, licence),
        _dashboard(run, owner=repo_id.partition("/")[0]),
    ]
    metadata = _metadata(run, repo_id, licence)
    return run.masker.text(f"---\n{metadata}---\n\n" + "\n\n".join(filter(None, sections)) + "\n")


def base_model(config: Mapping[str, Any]) -> str | None:
    """Model id or folder that training started from."""
    task = config["task"]
    if task["start"] == "base":
        return config["model"]["model_name_or_path"]
    return (task["starts"] or {}).get(task["start"])


def hub_id(name: str | None) -> str | None:
    """The name, if it can be an id on the Hub: OWNER/NAME, not a path, the miniature or a gym."""
    if not name or not _HUB_ID.fullmatch(name) or name.startswith((f"{MINIATURE}/", GYM)):
        return None
    return name


def is_miniature(name: str | None) -> bool:
    return (name or "").partition("/")[0] == MINIATURE


def dataset_id(config: Mapping[str, Any]) -> str | None:
    """The dataset's id on the Hub, or None for files and the miniature."""
    from trl_ablate.data.questions import (
        NAMED_DATASETS,  # imports pyarrow, which `import card` does not need
    )

    name = config["task"]["dataset"]
    return NAMED_DATASETS[name].hub_id if name in NAMED_DATASETS else hub_id(name)


def _metadata(run: FinishedRun, repo_id: str, licence: Licence | None) -> str:
    base, dataset = hub_id(base_model(run.config)), dataset_id(run.config)
    data = ModelCardData(
        library_name="peft" if run.is_adapter else "transformers",
        pipeline_tag="text-generation",
        base_model=base,
        datasets=[dataset] if dataset else None,
        tags=list(TAGS),
        model_name=on_one_line(repo_id.rpartition("/")[2]),
        eval_results=_eval_results(run, dataset),
    )
    for key, value in (licence or {}).items():
        data[key] = on_one_line(str(value))
    if base:
        data["base_model_relation"] = "adapter" if run.is_adapter else "finetune"
    return data.to_yaml() + "\n"


def _eval_results(run: FinishedRun, dataset: str | None) -> list[EvalResult] | None:
    """The published model's reward, for the list of results that the Hub shows."""
    row = _published_evaluation(run)
    if row is None or dataset is None:
        return None
    return [
        EvalResult(
            task_type="text-generation",
            dataset_type=dataset,
            dataset_name=run.config["task"]["dataset"],
            dataset_split=on_one_line(run.config["task"]["eval_split"] or "validation"),
            metric_type="reward",
            metric_name="reward per completion",
            metric_value=round(row["eval_reward"], 4),
        )
    ]


def _published_evaluation(run: FinishedRun) -> dict[str, Any] | None:
    """The evaluation of the model that the repository's root holds."""
    if run.chosen == BEST:
        return run.best_evaluation
    return run.evaluations[-1] if run.evaluations else None


def _summary(run: FinishedRun) -> str:
    record, base = run.record, base_model(run.config)
    start = f"[{base}](https://huggingface.co/{base})" if hub_id(base) else markdown_code(str(base))
    named = ["recipe", "profile", "arm", "seed"] + ["study"] * bool(record.get("study"))
    what = "LoRA adapter on" if run.is_adapter else "Trained from"
    lines = [
        f"{what} {start} with GRPO (TRL): "
        + ", ".join(f"{key} {markdown_code(str(record.get(key)))}" for key in named)
        + "."
    ]
    if is_miniature(base):
        lines.append(
            f"The base is {markdown_code(str(base))} of trl-ablate, a Qwen2 that was taught one "
            "kind of arithmetic question: a model for studying the method, without any other use."
        )
    if record["status"] != "finished":
        why = f": {for_markdown(str(record['reason']))}" if record.get("reason") else ""
        lines.append(f"**The run {record['status']} before its end{why}.**")
    return "\n\n".join(lines)


def _usage(run: FinishedRun, repo_id: str) -> str:
    example = markdown_fence(
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        f'model = AutoModelForCausalLM.from_pretrained("{repo_id}")\n'
        f'tokenizer = AutoTokenizer.from_pretrained("{repo_id}")',
        "python",
    )
    if run.chosen == LAST:
        which = "This is the model at the end of the run."
    else:
        which = "This is the model at its best evaluation" + (
            f'; `subfolder="{LAST}"` loads the one at the end.' if LAST in run.checkpoints else "."
        )
    return f"## Use\n\n{example}\n\n{which}"


def _changes(run: FinishedRun) -> str:
    changes: Mapping[str, Sequence[Any]] = run.config.get("changes") or {}
    if not changes:
        return "## What this arm changes\n\nNothing: it is the base recipe."
    rows = [[_cell(key), _cell(old), _cell(new)] for key, (old, new) in changes.items()]
    return "## What this arm changes\n\n" + markdown_table(("setting", "base", "here"), rows)


def _results(run: FinishedRun, picture: bool) -> str:
    shown = f"\n\n![Reward, gradient norm, response length and entropy over the run]({PICTURE})"
    if not run.evaluations:
        return "## Results\n\nThe run was never evaluated." + (shown if picture else "")
    first, best, last = run.evaluations[0], run.best_evaluation or {}, run.evaluations[-1]
    metrics = [key for key in last if key.startswith("eval_") and not _NO_RESULT.search(key)]
    header = ["metric"] + [
        f"{name} (step {row['step']})"
        for name, row in (("first", first), ("best", best), ("last", last))
    ]
    rows = [
        (_cell(metric), *(_with_error(row, metric) for row in (first, best, last)))
        for metric in metrics
    ]
    questions = run.config["task"].get("eval_size")
    note = (
        f"± is one standard error over the {questions or 'evaluation'} questions of this one run; "
        "it does not cover other seeds. The best was chosen from "
        f"{len(run.evaluations)} evaluations on the same questions, so its value is too "
        "optimistic; the last one is not."
    )
    return f"## Results\n\n{markdown_table(header, rows)}\n\n{note}" + (shown if picture else "")


def _with_error(row: Mapping[str, Any], metric: str) -> str:
    value, error = row.get(metric), row.get(stderr_of(metric))
    if not isinstance(value, (int, float)):
        return "–"
    shown = f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"
    return f"{shown} ± {error:.3f}" if isinstance(error, (int, float)) else shown


def _reproduce(run: FinishedRun) -> str:
    record, git = run.record, run.record.get("git") or {}
    words = [str(word) for word in record.get("command") or []]
    if words and words[0].endswith("scripts/train.py"):
        words = ["accelerate", "launch", "scripts/train.py", *words[1:]]
    elif words and words[0].endswith(("trl_ablate/__main__.py", "bin/trl-ablate")):
        words = ["trl-ablate", *words[1:]]
    if git.get("commit"):
        above = " with uncommitted changes, which are not published" if git.get("changed") else ""
        commit = f"At commit {markdown_code(str(git['commit']))}{above}:\n\n"
    else:
        commit = ""
    versions = {"python": record.get("python"), **(record.get("versions") or {})}
    known = [[for_markdown(name), for_markdown(str(v))] for name, v in versions.items() if v]
    settings = yaml.safe_dump(run.config.get("settings") or {}, allow_unicode=True)
    return (
        f"## Reproduce\n\n{commit}{markdown_fence(shlex.join(words), 'bash')}\n\n"
        + markdown_table(("package", "version"), known)
        + "\n\n<details><summary>All settings of the recipe, profile and command line</summary>"
        + f"\n\n{markdown_fence(settings.rstrip(), 'yaml')}\n\n</details>"
    )


def _files(run: FinishedRun) -> str:
    kept = " and ".join(f"`{name}/`" for name in run.checkpoints)
    return (
        f"## Files\n\n{kept}: the models. `metrics.jsonl`: every logged step. `rollouts/`: the "
        "model's responses at key steps, if the run saved them. `run.json` and "
        "`resolved_config.json`: the code, the versions, and every setting."
    )


def _licence_and_data(run: FinishedRun, licence: Licence | None) -> str:
    base, dataset = base_model(run.config), dataset_id(run.config)
    name = (licence or {}).get("license_name") or (licence or {}).get("license")
    if name is None:
        terms = f"The licence of {markdown_code(str(base))} applies; it could not be looked up."
    elif is_miniature(base):
        terms = f"{for_markdown(name)}, the same as trl-ablate."
    else:
        terms = f"{for_markdown(name)}, the same as the model it was trained from."
    data = markdown_code(str(run.config["task"]["dataset"]))
    if dataset:
        data = f"[{dataset}](https://huggingface.co/datasets/{dataset})"
    return f"## Licence and data\n\n{terms} Trained and evaluated on {data}."


def _dashboard(run: FinishedRun, owner: str) -> str | None:
    """The trackio Space that the run reported to, if it reported to one."""
    settings = run.config["config"]
    space = settings.get("trackio_space_id") or settings.get("trackio_static_space_id")
    name = hub_id(space if "/" in space else f"{owner}/{space}") if space else None
    if name is None:
        return None
    link = f"https://huggingface.co/spaces/{name}"
    return f"## Dashboard\n\n[Every metric of the run, on trackio]({link})"


def _cell(value: object) -> str:
    return markdown_code(str(value), in_table=True)
