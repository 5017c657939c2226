"""The results of `trl-ablate bench gpu` as Markdown. No torch."""

from collections.abc import Mapping, Sequence
from typing import Any

from trl_ablate.bench.gpu.registry import PARTS, Part
from trl_ablate.run.untrusted import for_markdown, markdown_table


def page(written: Mapping[str, Any], parts: Mapping[str, Part] = PARTS) -> str:
    """The page of a file of results."""
    size = "toy size" if written["toy"] else "full size"
    found = written["parts"]
    blocks = [
        f"# bench gpu: {written['device']}, {size}",
        for_markdown(f"Machine: {written['machine'] or 'unknown'}. Commit: {commit(written)}."),
        table([_summary(name, parts[name], one) for name, one in found.items()]),
    ]
    for name, one in found.items():
        if one.get("rows"):
            blocks += [f"## {name}", table(one["rows"])]
            facts = {**one.get("facts", {}), **_held(one)}
            blocks += [_facts(facts)] if facts else []
    return "\n\n".join(blocks) + "\n"


def commit(written: Mapping[str, Any]) -> str:
    git = written.get("git") or {}
    changed = " with uncommitted changes" if git.get("diff") else ""
    return f"{git.get('commit', 'unknown')[:12]}{changed}"


def _summary(name: str, part: Part, one: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "part": name,
        "result": one["status"],
        "s": one["seconds"],
        "what": part.shows,
        "why": one.get("reason", ""),
    }


def _held(one: Mapping[str, Any]) -> dict[str, str]:
    return {check: "yes" if holds else "NO" for check, holds in one.get("checks", {}).items()}


def _facts(facts: Mapping[str, Any]) -> str:
    return "\n".join(f"- {for_markdown(f'{key}: {cell(value)}')}" for key, value in facts.items())


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table; a row may lack columns of others."""
    header = list(dict.fromkeys(column for row in rows for column in row))
    cells = [[for_markdown(cell(row.get(column, ""))) for column in header] for row in rows]
    return markdown_table(header, cells)


def cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
