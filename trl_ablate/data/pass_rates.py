"""Questions by how often a model has answered them: the file that `evaluate --per_question` writes.

Each line is an object with `question` and `pass_rate`, the share of graded samples that were right,
or null if none was graded.
"""

import json
import logging
from pathlib import Path
from typing import Any

from trl_ablate.errors import ConfigurationError

logger = logging.getLogger(__name__)


def by_pass_rate(
    rows: list[dict[str, Any]], file: str, low: float, high: float, name: str
) -> list[dict[str, Any]]:
    """The rows whose question has a pass rate from `low` to `high`, both included."""
    rates = _rates(file)
    known = [row for row in rows if row.get("question") in rates]
    if rows and not known:
        raise ConfigurationError(
            f"pass_rate: {file} has none of the {len(rows)} questions of dataset {name!r}; make it "
            "with `trl-ablate evaluate MODEL --dataset D --eval_split train --per_question FILE`"
        )
    kept = [row for row in known if low <= rates[row["question"]] <= high]
    if rows and not kept:
        raise ConfigurationError(
            f"pass_rate: none of {len(known)} questions of dataset {name!r} has a rate between "
            f"{low} and {high}; widen `between`"
        )
    logger.warning(
        "pass_rate kept %d of %d questions of %s; %d have no rate in %s",
        len(kept), len(rows), name, len(rows) - len(known), file,
    )  # fmt: skip
    return kept


def _rates(file: str) -> dict[str, float]:
    found: dict[str, float] = {}
    number = 0
    try:
        for line in Path(file).read_text(encoding="utf-8").splitlines():
            number += 1
            row = json.loads(line)
            if row["pass_rate"] is not None:
                found[row["question"]] = float(row["pass_rate"])
    except FileNotFoundError:
        raise ConfigurationError(
            f"pass_rate: there is no file {file}; create it, or correct the path"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"pass_rate: {file}, line {number}, has no question and pass_rate ({error!r}); make it "
            "with `trl-ablate evaluate --per_question`"
        ) from error
    return found
