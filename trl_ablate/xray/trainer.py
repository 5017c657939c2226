"""`XrayTrainer`: an `AblationTrainer` that takes stored rollouts in place of generating its own.

Everything else is the arm's own code: its advantages from the stored rewards, its filters, its
loss. A rollout batch that is not stored yet is drawn and stored. Each batch has its own seed, so
what is drawn does not depend on which batches were drawn before.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object

from trl_ablate.errors import ConfigurationError
from trl_ablate.rewards import MathGrader
from trl_ablate.trainer.ablation import AblationTrainer
from trl_ablate.trainer.batching import ROW, Batch, is_text, response_mask
from trl_ablate.trainer.groups import Scored
from trl_ablate.xray.stored_rollouts import RolloutBatch, RolloutFolder

PushHook = Callable[[int, Batch, torch.Tensor], None]
"""Gets the number of the rollout batch, a microbatch, and the derivative of its loss by each
token's log-probability, `(N, T)`."""


@dataclasses.dataclass(frozen=True)
class Sources:
    folder: RolloutFolder
    questions: Sequence[dict[str, Any]]
    batches: int
    seed: int
    grader: MathGrader
    work: Path
    """A folder for what TRL writes."""
    recorded: list[list[int]] | None = None
    """Completions of a run, of all batches, to store in place of drawn ones."""


class XrayTrainer(AblationTrainer):
    """A trainer on stored rollouts. Call `reads` before `train`."""

    _sources: Sources
    _calls = 0
    _left = 0
    """Tokens of this process's part of the batch that the group filter got."""

    def reads(
        self,
        sources: Sources,
        *,
        apart: bool = False,
        scores_again: bool = False,
        on_push: PushHook | None = None,
    ) -> None:
        """Set the source of the rollouts; after the last batch comes the first again.

        Args:
            apart: the weights are not those that sampled, so ratios are taken to the stored
                log-probabilities.
            scores_again: the arm's own reward functions score the stored completions.
        """
        self._sources = sources
        self._apart, self._scores_again, self._on_push = apart, scores_again, on_push
        self._drawn: dict[str, Any] = {}
        self.lost_tokens = {"stored": 0, "masked": 0, "dropped": 0}  # of this process

    @property
    def _number(self) -> int:
        return self._calls % self._sources.batches

    @property
    def _stored(self) -> RolloutBatch | None:
        """The batch at hand; None if it has to be drawn."""
        return self._sources.folder.batch(self._number)

    def _generate_and_score_completions(self, inputs):
        place = self.accelerator.process_index + 1000 * self._number
        torch.manual_seed(1_000_000 * self._sources.seed + place)
        batch = super()._generate_and_score_completions(inputs)
        self.lost_tokens["dropped"] += self._left - int(response_mask(batch).sum())
        self._calls += 1
        torch.manual_seed(self._sources.seed)  # for TRL's shuffle, the same in every arm
        return batch

    def _generate_single_turn(
        self, prompt_ids, images, multimodal_fields, num_generations, **kwargs
    ):
        stored, recorded = self._stored, self._sources.recorded
        local = self._setting().local_rows(len(prompt_ids))
        if stored is None:
            if recorded is None:
                drawn = super()._generate_single_turn(
                    prompt_ids, images, multimodal_fields, num_generations, **kwargs
                )
            else:
                of_all = len(prompt_ids) * self.accelerator.num_processes
                ids = recorded[self._number * of_all :][local]
                own = self.args.knows_sampler  # no other log-probabilities of theirs are known
                drawn = ids, self._sampler_logps(prompt_ids, ids) if own else None
            self._drawn = {"prompt_ids": prompt_ids, "completion_ids": drawn[0]}
            self._drawn["sampling_logps"] = drawn[1]
            return drawn
        if [list(ids) for ids in prompt_ids] != stored.prompt_ids[local]:
            raise ConfigurationError(
                f"the rollouts in {self._sources.folder.path} answer other prompts than those of "
                f"'{self.args.arm}': they are of another template, tokenizer or data; draw new "
                "rollouts with another --output"
            )
        logps = stored.sampling_logps
        if logps is None and self.args.use_vllm:
            logps = stored.logps  # sampled by the trainer itself: its own are the engine's
        return stored.completion_ids[local], None if logps is None else logps[local]

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        stored = self._stored
        if stored is None or self._scores_again:
            return super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if stored.reward_names != self.reward_func_names:
            raise ConfigurationError(
                f"the rollouts in {self._sources.folder.path} have the rewards "
                f"{', '.join(stored.reward_names)}, and '{self.args.arm}' has "
                f"{', '.join(self.reward_func_names)}; draw new rollouts with another --output"
            )
        return torch.tensor(stored.rewards_NF, dtype=torch.float32, device=self.accelerator.device)

    def scored(self, inputs: list[dict[str, Any]], turn: int = 0) -> Scored:
        found = super().scored(inputs, turn)
        batch = dict(found.batch)
        if not is_text(batch) or "tool_mask" in batch:
            raise ConfigurationError(
                "an X-ray is for text without tools, but a batch has "
                f"{', '.join(sorted(batch))}; leave out images, tools and environments"
            )
        if self._stored is None:
            self._store(found)
        local = self._setting().local_rows(len(batch["prompt_mask"]))
        if self._apart:
            rows = self._stored.logps[local] if self._stored else []
            logps_NT = torch.zeros(batch["completion_ids"].shape, device=self.accelerator.device)
            for row, logps in enumerate(rows):
                logps_NT[row, : len(logps)] = torch.tensor(logps)
            batch["old_per_token_logps"] = logps_NT
            if self.mismatch.saves_a_forward or "importance_sampling_ratio" in batch:
                ratio = self.mismatch.ratio(logps_NT, batch, response_mask(batch))
                batch["importance_sampling_ratio"] = ratio  # that of the weights that sampled
        stored = sum(map(len, self._completion_ids))
        self._left = int(response_mask(batch).sum())
        self.lost_tokens["stored"] += stored
        self.lost_tokens["masked"] += stored - self._left
        batch[ROW] = torch.arange(local.start, local.stop, device=self.accelerator.device)
        return dataclasses.replace(found, batch=batch)

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        loss_pass, notify = self._loss_pass, self._on_push
        if loss_pass is not None and notify is not None and result[0].requires_grad:
            number = (self._calls - 1) % self._sources.batches
            batch = {**loss_pass.inputs, "mask": loss_pass.mask_NT}
            result[0].register_hook(lambda gradient: notify(number, batch, gradient.detach()))
        return result

    def _store(self, found: Scored) -> None:
        """Store the batch that was drawn, with the rows of all processes."""
        drawn = {name: rows and [list(row) for row in rows] for name, rows in self._drawn.items()}
        lengths = [len(ids) for ids in drawn["completion_ids"]]
        logps_NT = self._logps_of_all(found.batch, lengths)
        drawn["logps"] = [row[:n] for row, n in zip(logps_NT.tolist(), lengths, strict=True)]
        batch = RolloutBatch(
            **{name: rows and gather_object(rows) for name, rows in drawn.items()},
            rewards_NF=self._rewards_NF.float().cpu().numpy(),
            reward_names=list(self.reward_func_names),
            passed_N=found.passed_N.cpu().numpy(),
        )
        self._sources.folder.put(self._number, batch, write=self.accelerator.is_main_process)

    def _logps_of_all(self, batch: Batch, lengths: list[int]) -> torch.Tensor:
        """Of every completion, also of those that the loss masks."""
        places_T = torch.arange(batch["completion_ids"].size(1))
        mask_NT = (places_T < torch.tensor(lengths).unsqueeze(1)).to(batch["prompt_mask"])
        ids_NL = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        mask_NL = torch.cat([batch["prompt_mask"], mask_NT], dim=1)
        at_once = self.args.per_device_train_batch_size
        with torch.no_grad():
            found: Any = self._get_per_token_logps_and_entropies(
                self.model, ids_NL, mask_NL, len(places_T), batch_size=at_once
            )
        return found[0]
