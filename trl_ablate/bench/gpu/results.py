"""The file of results of `trl-ablate bench gpu`, and its page as Markdown. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trl_ablate.bench.gpu.parts import PARTS, Setup
from trl_ablate.errors import ConfigurationError
from trl_ablate.run.json_files import read_object, write_json
from trl_ablate.run.provenance import provenance
from trl_ablate.run.untrusted import for_markdown, markdown_table

FINISHED = ("ok", "skipped")
"""Statuses of parts that a continued run does not repeat. A part that had no time left is not one
of them: it was not started."""


@dataclass
class Results:
    """The file of results, and what is in it."""

    file: Path
    setup: Setup
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def continued(cls, file: Path, setup: Setup) -> "Results":
        """The results of an earlier run, which must have been of the same device and size."""
        if not file.exists():
            return cls(file, setup)
        written = read_object(file)
        before = (written.get("device"), written.get("toy"))
        if before != (setup.device, setup.toy) or not isinstance(written.get("parts"), dict):
            raise ConfigurationError(
                f"{file} holds no results of device {setup.device} with toy={setup.toy}; give the "
                "options of the first run, or another --output"
            )
        return cls(file, setup, written["parts"])

    def add(self, name: str, result: dict[str, Any]) -> None:
        self.parts[name] = result
        machines = (one.get("machine") for one in self.parts.values())
        written = {
            "benchmark": "gpu",
            "device": self.setup.device,
            "toy": self.setup.toy,
            "machine": next(filter(None, machines), None),
            "parts": self.parts,
        }
        write_json(self.file, {**written, **provenance()})

    def has(self, name: str) -> bool:
        return self.parts.get(name, {}).get("status") in FINISHED

    @property
    def all_well(self) -> bool:
        return all(map(self.has, self.parts))


def page(written: Mapping[str, Any]) -> str:
    """The page of a file of results."""
    size = "toy size" if written["toy"] else "full size"
    git = written.get("git") or {}
    commit = git.get("commit", "unknown")[:12] + " with uncommitted changes" * bool(git.get("diff"))
    found = written["parts"]
    summary = [
        {"part": name, "result": one["status"], "s": one["seconds"], "what": PARTS[name].shows,
         "why": one.get("reason", "")}
        for name, one in found.items()
    ]  # fmt: skip
    blocks = [
        f"# bench gpu: {written['device']}, {size}",
        for_markdown(f"Machine: {written['machine'] or 'unknown'}. Commit: {commit}."),
        _table(summary),
    ]
    for name, one in found.items():
        if one.get("rows"):
            held = {check: "yes" if holds else "NO" for check, holds in one["checks"].items()}
            facts = [f"{key}: {_cell(value)}" for key, value in (one["facts"] | held).items()]
            blocks += [f"## {name}", _table(one["rows"])]
            blocks += ["\n".join(f"- {for_markdown(fact)}" for fact in facts)] if facts else []
    return "\n\n".join(blocks) + "\n"


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table; a row may lack columns of others."""
    header = list(dict.fromkeys(column for row in rows for column in row))
    cells = [[for_markdown(_cell(row.get(column, ""))) for column in header] for row in rows]
    return markdown_table(header, cells)


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
