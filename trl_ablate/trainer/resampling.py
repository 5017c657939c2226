"""Dynamic sampling: groups without reward variance are replaced by groups of fresh prompts.

Each round generates as many groups as are missing, rounded up to what the processes can share
evenly. Rounds end when the batch is full, or after `max_resample_rounds`; groups that are still
missing keep the place of a group without variance, which `group_filter` then drops.

Fresh prompts are drawn at random from the training set, as a function of the run's seed, the step
and the round. So no cursor has to be saved to resume. TRL's metrics of rollouts and rewards are
those of the first round, whose prompts do not depend on this switch.
"""

import itertools
import logging
import math
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from datasets import IterableDataset

from trl_ablate.advantages import has_variance
from trl_ablate.errors import ConfigurationError
from trl_ablate.trainer.batching import (
    PROMPT_KEYS,
    SCALAR_KEYS,
    concatenated,
    is_text,
    padding_of,
    taken,
)
from trl_ablate.trainer.groups import Scored
from trl_ablate.trainer.rollouts import Setting, counted

logger = logging.getLogger(__name__)

Place = tuple[int, int]
"""A round, and a group or row in it."""
Columns = dict[tuple[str, ...], Any]


def check_dataset(dataset: Any) -> None:
    """Refuse a stream: fresh prompts are drawn at random places of the training set."""
    if isinstance(dataset, IterableDataset):
        raise ConfigurationError(
            "group_filter 'resample' draws fresh prompts at random places of the training set, "
            "but this one is a stream; load it as a whole, or use group_filter 'drop'"
        )


def fill(kept: Sequence[Sequence[bool]]) -> list[Place]:
    """The group in each place of the batch, from which groups of each round have variance.

    Groups of the first round with variance keep their places; the other places take those of later
    rounds, in order, and if these do not suffice, the last keep their group without variance.
    """
    fresh = deque(
        (turn, place)
        for turn, kept_P in enumerate(kept[1:], start=1)
        for place, one in enumerate(kept_P)
        if one
    )
    return [
        (0, place) if one or not fresh else fresh.popleft() for place, one in enumerate(kept[0])
    ]


@dataclass(frozen=True)
class Resampling:
    """The rounds of one rollout batch.

    `score` is one call of TRL's generation and scoring with these questions, in this round.
    `logs` is TRL's log of completions, of its last call.
    """

    setting: Setting
    score: Callable[[list[dict[str, Any]], int], Scored]
    dataset: Any
    logs: Mapping[str, Any]
    padding_id: int
    step: int

    def filled(self, first: Scored) -> Scored:
        """The first round's groups with variance, and those of further rounds in place of the
        others. Every process calls this; batches are composed of the groups of all processes."""
        group, most = self.setting.group, self.setting.config.max_resample_rounds
        rounds, kept = [self._gathered(first)], [has_variance(first.outcome_N, group).tolist()]
        logs = [self._logged(len(first.outcome_N))]
        lengths = {name: len(values) for name, values in self.setting.metrics.items()}
        while (missing := kept[0].count(False) - sum(map(sum, kept[1:]))) > 0:
            if len(rounds) > most:
                logger.warning(
                    "%d of %d groups have no reward variance after %d rounds of resampling; they "
                    "are left out of this step",
                    *(missing, len(kept[0]), most),
                )
                break
            found = self.score(self._fresh_rows(missing, len(rounds)), len(rounds))
            rounds.append(self._gathered(found))
            kept.append(has_variance(found.outcome_N, group).tolist())
            logs.append(self._logged(len(found.outcome_N)))
        if len(rounds) == 1:
            return first
        self._forget_later_metrics(lengths)
        rows = [(turn, group * place + row) for turn, place in fill(kept) for row in range(group)]
        for name, column in _columns(self.logs).items():
            if any(name in one for one in logs):
                column.clear()
                column.extend(logs[turn][name][row] if name in logs[turn] else None
                              for turn, row in rows)  # fmt: skip
        return self._composed(rounds, rows)

    def _fresh_rows(self, missing: int, turn: int) -> list[dict[str, Any]]:
        """The rows of this process, of at least `missing` groups."""
        group, processes = self.setting.group, self.setting.accelerator.num_processes
        together = processes // math.gcd(processes, group)
        groups = -(-missing // together) * together
        draw = random.Random(f"{self.setting.config.seed}-{self.step}-{turn}-prompts")
        places = range(len(self.dataset))
        enough = groups <= len(places)
        chosen = draw.sample(places, groups) if enough else draw.choices(places, k=groups)
        local = self.setting.local_rows(groups * group // processes)
        return [dict(self.dataset[chosen[row // group]]) for row in range(local.start, local.stop)]

    def _gathered(self, found: Scored) -> Scored:
        if not is_text(found.batch):
            raise ConfigurationError(
                "group_filter 'resample' composes batches of text only, but this one has "
                f"{', '.join(sorted(found.batch))}; use group_filter 'drop'"
            )
        batch = dict(found.batch)
        for key in [key for key in batch if key not in SCALAR_KEYS]:
            if batch[key].dim() > 1:
                batch[key] = self.setting.accelerator.pad_across_processes(
                    batch[key],
                    dim=1,
                    pad_index=padding_of(key, self.padding_id),
                    pad_first=key in PROMPT_KEYS,
                )
            batch[key] = self.setting.gather(batch[key])
        return replace(found, batch=batch)

    def _composed(self, rounds: Sequence[Scored], rows: Sequence[Place]) -> Scored:
        """One batch of these rows of these rounds; this process keeps its part of it."""
        first = rounds[0]
        starts = list(itertools.accumulate((len(one.outcome_N) for one in rounds), initial=0))
        places = torch.tensor([starts[turn] + row for turn, row in rows]).to(first.outcome_N.device)
        local = self.setting.local_rows(len(rows) // self.setting.accelerator.num_processes)
        batch = concatenated([each.batch for each in rounds], self.padding_id)
        penalties = [each.penalty_N for each in rounds if each.penalty_N is not None]
        shaping = [each.shaping_N for each in rounds if each.shaping_N is not None]
        return Scored(
            batch=counted(self.setting, taken(batch, places[local])),
            outcome_N=torch.cat([each.outcome_N for each in rounds])[places],
            shaping_N=torch.cat(shaping)[places] if shaping else None,
            passed_N=first.passed_N,
            penalty_N=torch.cat(penalties)[places] if penalties else None,
            lengths=[length for each in rounds for length in each.lengths],
        )

    def _logged(self, count: int) -> Columns:
        """The last call's columns of TRL's log, `count` rows; without columns that lack rows."""
        columns = _columns(self.logs).items()
        return {name: list(one)[-count:] for name, one in columns if len(one) >= count}

    def _forget_later_metrics(self, lengths: Mapping[str, int]) -> None:
        metrics = self.setting.metrics
        for name in list(metrics):
            del metrics[name][lengths.get(name, 0) :]
            if not metrics[name]:
                del metrics[name]


def _columns(logs: Mapping[str, Any]) -> Columns:
    """The columns of TRL's log of completions, some of which are in groups."""
    columns: Columns = {}
    for name, column in logs.items():
        if isinstance(column, Mapping):
            columns |= {(name, part): values for part, values in column.items()}
        else:
            columns[(name,)] = column
    return columns
