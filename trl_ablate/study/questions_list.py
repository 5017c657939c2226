"""Read `findings.yaml`: which study answers which question. No torch.

The file itself explains its keys. Studies are folders beside it, each with a `study.yaml`.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from trl_ablate.errors import ConfigurationError
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.recipe.strict import check_value, read_mapping
from trl_ablate.study.definition import checked

Part = Literal["question", "factors", "papers", "control", "passes", "carry"]
Kind = Literal["better", "worse", "collapse", "equivalent", "fails more often"]

LIST = SHIPPED / "studies" / "findings.yaml"


@dataclass(frozen=True)
class Question:
    """A question, and the study and arms that answer it."""

    question: str
    part: Part
    study: str
    arms: dict[str, str] = field(default_factory=dict)
    """Arm -> what it is, in words; the first is the headline. None: all arms of the study."""
    names: dict[str, str] = field(default_factory=dict)
    """References that are no answers, in words."""
    why: dict[str, str] = field(default_factory=dict)
    """Verdict -> a reason."""
    overturned_by: str = ""
    """What would overturn the headline; such a question stands first on the page."""
    replaced_by: str = ""
    """A study that asks the same with more runs: the answers stand in its report alone."""
    aside: bool = False
    """Whether it follows another answer up, for the page of more answers."""
    worlds: dict[str, str] = field(default_factory=dict)
    """Study -> its world, for an answer that is looked for in several worlds."""
    cells: dict[str, list[str]] = field(default_factory=dict)
    """Words -> two cells of factorial studies, for such an answer."""

    @property
    def studies(self) -> list[str]:
        return [*self.worlds] or [self.study]


def read_findings(path: Path) -> list[Question]:
    """The questions of a list, in its order; raises `ConfigurationError` if anything is wrong."""
    given = checked(read_mapping(path, "list of findings"), {"rows": list[dict]}, f"list {path}")
    if not given.get("rows"):
        raise ConfigurationError(f"list {path} has no rows; add a question and its study")
    rows = [_question(row, f"list {path}: row {n}") for n, row in enumerate(given["rows"], 1)]
    for asked, study in [(row, study) for row in rows for study in row.studies]:
        if not os.path.isfile(file := study_file(path, study)):
            raise ConfigurationError(
                f"list {path}: study '{study}' of '{asked.question}' does not exist; write {file}, "
                "or name another study"
            )
    return rows


def study_file(path: Path, study: str) -> Path:
    return path.parent / study / "study.yaml"


def _question(given: dict[str, Any], what: str) -> Question:
    row = checked(given, get_type_hints(Question), what)
    for key in ("question", "part", "study"):
        if not row.get(key):
            raise ConfigurationError(f"{what} has no `{key}`; add it")
    for kind in row.get("why", {}):
        check_value(f"{what}: why", kind, Kind)
    if (row["part"] == "carry") != bool(row.get("worlds")):
        raise ConfigurationError(
            f"{what}: part is '{row['part']}'; worlds belong to part 'carry', and to no other of "
            f"{', '.join(get_args(Part))}"
        )
    return Question(**row)
