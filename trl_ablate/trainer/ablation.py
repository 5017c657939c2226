"""`AblationTrainer`: the switches wired into TRL's `GRPOTrainer`. Wiring only, no mathematics.

No code of TRL is copied. Each override calls `super()` and changes its input or its output; in the
order of a step:

    _generate_and_score_completions        a rollout batch: generated, scored, advantages
      _generate, _generate_single_turn     stop strings end completions; the sampler's weights
      _calculate_rewards                   keep the gathered rewards
    _prepare_inputs                        its microbatches: trimmed, regrouped
    _compute_loss                          length norm and surrogate, for the duration of the call;
                                           terms that TRL lacks; its metrics, of regrouped rows
      _get_per_token_logps_and_entropies   no padding through the model; keep the loss's
                                           log-probabilities; correct the engine's
    evaluate, log                          one-shot evaluation; metrics since the last row
    _save_checkpoint, _load_from_checkpoint, _run_epoch, _get_train_sampler, _finalize_training
                                           save and restore all state; delete only our own folders
    create_model_card                      name a base that is a folder

`tests/contract` tests each override against the installed TRL.
"""

import inspect
from collections import defaultdict
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOTrainer

from trl_ablate.config import AblationConfig, own_config
from trl_ablate.metrics import ANSWER
from trl_ablate.rewards.own.chosen import Rewards
from trl_ablate.trainer import (
    batching,
    carried,
    generation,
    left_out,
    loss_pass,
    one_shot,
    sampler,
    update,
)
from trl_ablate.trainer.decoding import without_ended_rows
from trl_ablate.trainer.engine import engine_as_configured
from trl_ablate.trainer.forward_passes import (
    is_text_forward,
    needs_all_processes,
    of_responses,
    passes_of,
    without_gradient_of,
)
from trl_ablate.trainer.groups import (
    Scored,
    check_outcome_gate,
    scored,
    told_apart,
    with_advantages,
)
from trl_ablate.trainer.mismatch import MismatchCorrection
from trl_ablate.trainer.resampling import Resampling, check_dataset
from trl_ablate.trainer.rollouts import Described, Setting, counted, describe, rollout_rows, without
from trl_ablate.trainer.temporary import replaced


class AblationTrainer(GRPOTrainer):
    """`GRPOTrainer` with the switches of `AblationConfig`; at their defaults, `GRPOTrainer`.

    `eval_steps` and `save_steps` count rollout batches; in TRL they count optimizer steps.
    """

    _tag_names = ["trl", "grpo", "trl-ablate"]
    args: AblationConfig

    def __init__(
        self, model, reward_funcs=None, args: AblationConfig | None = None, *more, **keywords
    ):
        args = own_config(args, model)
        args.generation_kwargs = generation.backend_generation_kwargs(args)
        with engine_as_configured(args):
            super().__init__(model, reward_funcs, args, *more, **keywords)
        self.reward_func_names = told_apart(self.reward_func_names)
        check_outcome_gate(args, self.reward_func_names)
        if args.group_filter == "resample":
            check_dataset(self.train_dataset)
        sampler.check_sampled_here(args, self.rollout_func)
        generation.check_turns(self)
        self.stop = generation.StopStrings(
            args.stop or (), self._tokenizer, self.eos_token_ids, args.min_tokens
        )
        self._passes = passes_of(self)
        self._loss_pass: loss_pass.LossPass | None = None
        self.sampler = sampler.Sampler(args)
        self.described = Described([], [])
        self._rewards_NF = torch.empty(0)
        self._training_logs = self._logs
        factories: Any = self.environment_factories
        self.evaluation_environments = {name: [] for name in factories or ()}
        self.rewards_of_sets: dict[str, Rewards] = {}
        """Of the evaluation sets that have their own."""
        metrics, setting = self._metrics["train"], self._setting()
        self.generated_tokens = 0
        self.ratio_sums = loss_pass.RatioSums()
        self._regrouped: list[batching.Batch] = []
        """Microbatches, with the results of their forward passes, until a group is whole."""
        self._known: Any = None
        """The results of the forward pass, where they are known."""
        self.mismatch = MismatchCorrection(args)
        self.idle_steps = update.IdleSteps(metrics, setting.total)
        self.callback_handler.add_callback(self.idle_steps)
        clock = update.GRPOStepClock()
        self.callback_handler.callbacks.insert(1, clock)  # behind `DefaultFlowCallback`
        self.phases = update.StepPhases(metrics, memory=args.log_memory)
        self.callback_handler.add_callback(self.phases)
        if args.eval_strategy != "no":
            one_shot.check_sets(self)

    # The signature that `inspect` and editors show. `*more` passes on what each TRL release takes.
    __init__.__signature__ = inspect.signature(GRPOTrainer.__init__)  # pyright: ignore[reportFunctionMemberAccess]

    def create_accelerator_and_postprocess(self) -> None:
        """FSDP 2 would round log-probabilities, which its forward pass returns, to bfloat16."""
        super().create_accelerator_and_postprocess()
        plugin: Any = self.accelerator.state.fsdp_plugin if self.is_fsdp_enabled else None
        if plugin and plugin.fsdp_version == 2 and plugin.mixed_precision_policy:
            policy = replace(plugin.mixed_precision_policy, output_dtype=None)
            plugin.mixed_precision_policy = policy

    def _setting(self) -> Setting:
        training = self.model.training
        group: Any = self.num_generations if training else self.num_generations_eval
        metrics = self._metrics["train" if training else "eval"]
        return Setting(self.args, self.accelerator, metrics, training, group)

    def _is_sharded(self) -> bool:
        return self.is_fsdp_enabled or self.is_deepspeed_enabled

    # Rollout

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        with self.phases.phase("rollout"):
            found = self.scored(inputs)
            if self.model.training and self.args.group_filter == "resample":
                padding: Any = self._tokenizer.pad_token_id
                train: Any = self.train_dataset
                dataset: Any = self._remove_unused_columns(train)
                source = (dataset, self._logs, padding, self._step)
                found = Resampling(self._setting(), self.scored, *source).filled(found)
        return self.with_advantages(found)

    def _generate(self, prompts: list):
        generated = super()._generate(prompts)
        # A rollout function may return tensors
        ids = [one if isinstance(one, list) else [*map(int, one)] for one in generated[1]]
        self._completion_ids = ids
        self.described = describe(self._setting(), self.stop, self._tokenizer, ids, generated[2])
        return generated

    def _generate_single_turn(
        self, prompt_ids, images, multimodal_fields, num_generations, **kwargs
    ):
        training = self.model.training
        model: Any = self.accelerator.unwrap_model(self.model_wrapped, keep_torch_compile=False)
        with self._sampling_weights():
            with self._decoding(model), self.stop.known_to(model):
                completion_ids, logprobs = super()._generate_single_turn(
                    prompt_ids, images, multimodal_fields, num_generations, **kwargs
                )
            self.model.train(training)  # continuous batching leaves it in training mode
            if not self.use_vllm:
                completion_ids = [self.stop.cut(ids) for ids in completion_ids]
            if training and self.args.sampler_differs and logprobs is None:
                sampler.check_text(images)
                logprobs = self._sampler_logps(prompt_ids, completion_ids)
        return completion_ids, logprobs

    def _decoding(self, model: Any):
        if self.use_vllm or self._is_sharded() or not self.args.drop_ended_rows:
            return nullcontext()
        return without_ended_rows(model, self.accelerator.autocast, self.generation_config)

    @contextmanager
    def _sampling_weights(self):
        """Until the end of the block, the model has the sampler's weights, if it has its own."""
        if not (self.args.exchanges_weights and self.model.training):
            yield
            return
        model: Any = self.accelerator.unwrap_model(self.model)
        self._last_loaded_step = -1  # an evaluation has loaded the policy
        try:
            with self.sampler.weights_in(model, self._step, sharded=self._is_sharded()):
                yield
        finally:
            self._last_loaded_step = -1  # so that an engine loads the policy for evaluation

    def _sampler_logps(self, prompt_ids, completion_ids) -> list[list[float]]:
        forward: Any = self._logps
        if self.args.truncates and self.args.correct_truncation:
            ends = self.eos_token_ids
            truncated = partial(sampler.forward_truncated, self.model, self.args, ends)
            forward = self.accelerator.autocast()(truncated)
        padding: Any = self._tokenizer.pad_token_id
        device = self.accelerator.device
        return sampler.sampler_logps(forward, prompt_ids, completion_ids, padding, device)

    def latest_rollouts(self) -> list[dict[str, Any]]:
        """The last rollout batch of training, a row per completion; unreported values are None."""
        return rollout_rows(self._training_logs, self.reward_func_names, self.reward_weights)

    # Score

    def scored(self, inputs: list[dict[str, Any]], turn: int = 0) -> Scored:
        """Generate and score in one call of TRL, the first or a later one of a rollout batch."""
        args, setting = self.args, self._setting()
        computed = self._calculate_rewards  # of a subclass, too

        def kept(*given):
            self._rewards_NF = computed(*given)
            return self._rewards_NF

        with replaced(self, _calculate_rewards=kept, **self._left_to_us()):
            output = super()._generate_and_score_completions(inputs)
        of_kl_N = loss_pass.kl_penalty(setting, output, self._logps_before, self.beta)
        if self._masks_truncated:
            local = setting.local_rows(len(output["completion_mask"]))
            ended = [not truncated for truncated in self.described.truncated[local]]
            output = counted(setting, without(output, ended))
        # Without vLLM, TRL computes no ratio, and the loss only in an update that is on-policy
        lacks_ratio = "importance_sampling_ratio" not in output and "old_per_token_logps" in output
        if lacks_ratio and args.corrects_without_engine and setting.training:
            output["importance_sampling_ratio"] = self.mismatch.ratio(
                output["old_per_token_logps"], output, batching.response_mask(output)
            )
        rewards = (self._rewards_NF, self.reward_weights, self.reward_func_names)
        lengths, call = self.described.lengths, f"{self._step}-{turn}"
        marks = [*self._logs["extra"].get(ANSWER, ())][-len(lengths) :]  # of this call
        return scored(setting, output, *rewards, marks, lengths, of_kl_N, call)

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        with self.phases.phase("reward"):
            rewards_NF = super()._calculate_rewards(
                inputs, prompts, completions, completion_ids_list
            )
        if "answer" in inputs[0] and "ground_truth" not in self._pending_extra_logs:
            self._log_completion_extra("ground_truth", [row["answer"] for row in inputs])
        return rewards_NF

    @property
    def _masks_truncated(self) -> bool:
        """TRL does not know stop strings, and masks before the KL of whole responses is known."""
        early = self.stop.strings or self.args.kl_in == "reward"
        return bool(early and self.mask_truncated_completions)

    def _left_to_us(self) -> dict[str, Any]:
        """Settings of TRL that are off while it generates and scores, because this package does
        their work: some masking of truncated completions, the importance correction if it uses
        the training's own forward pass, and scales that TRL lacks."""
        correct = self.vllm_importance_sampling_correction and not self.mismatch.saves_a_forward
        masks = self.mask_truncated_completions and not self._masks_truncated
        known = self.args.scale_rewards in ("group", "batch", "none")
        return {
            "vllm_importance_sampling_correction": correct,
            "mask_truncated_completions": masks,
            "scale_rewards": self.args.scale_rewards if known else "group",
        }

    def _logps_before(self, batch: dict[str, Any]) -> Tensor:
        """Log-probabilities of the policy before the update, which TRL computes only if needed."""
        if "old_per_token_logps" in batch:
            return batch["old_per_token_logps"]
        return self._logps(*batching.rows_of(batch))

    def _logps(self, ids_NL: Tensor, mask_NL: Tensor, width: int) -> Tensor:
        args, training = self.args, self.model.training
        size = args.per_device_train_batch_size if training else args.per_device_eval_batch_size
        with torch.no_grad():
            found: Any = self._get_per_token_logps_and_entropies(
                self.model, ids_NL, mask_NL, width, batch_size=size
            )
        return found[0]

    # Advantages

    def with_advantages(self, found: Scored) -> dict[str, Any]:
        """The batch with our advantages, which replace TRL's in the log of completions, too."""
        bonus = self._entropy_bonus_enabled
        batch, advantages_N = with_advantages(self._setting(), found, bonus=bonus)
        logged = self._logs["advantages"]
        for _ in range(min(len(logged), len(advantages_N))):
            logged.pop()
        logged.extend(advantages_N.tolist())
        if self.model.training:
            self.generated_tokens += sum(found.lengths)
            self._metrics["train"]["rollouts/generated_tokens"] = [float(self.generated_tokens)]
        return batch

    # Microbatches

    def _prepare_inputs(self, generation_batch):
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        microbatches: Any = self._buffered_inputs
        if not self.model.training or microbatches is before:
            return inputs
        of_rows = (batching.ROW_WEIGHTS,) if self.loss_type == "bnpo" else ()
        for key in (*of_rows, batching.BONUS_WEIGHTS):
            if key in microbatches[0]:
                batching.weigh_microbatches(microbatches, key, self._setting().total)
        if self.aux_loss_enabled or not self._is_text(microbatches):
            return inputs
        self._buffered_inputs, padding = batching.without_needless_padding(
            microbatches,
            self.args.regrouped_together,
            self._passes,
            idle_apart=self._passes is not None and self.args.skip_idle_rows,
        )
        for name, value in padding.items():
            self._metrics["train"][name].append(value)
        return self._buffered_inputs[self._step % len(self._buffered_inputs)]

    def _is_text(self, microbatches) -> bool:
        """Whether no process has an image: all have to make the same calls of each other."""
        local = torch.tensor(all(map(batching.is_text, microbatches)), device=self.args.device)
        return self._setting().total(local.float()).item() == self.accelerator.num_processes

    # Loss and update

    def _compute_loss(self, model, inputs: dict[str, Any]) -> Tensor:
        """TRL logs means over a microbatch: of regrouped rows, they are logged once all are known,
        by TRL's loss on the microbatches that TRL drew, without another forward pass."""
        trained: Any = self.model
        drawn = batching.DRAWN in inputs
        unlogged = {mode: defaultdict(list) for mode in self._metrics}
        with replaced(self, _metrics=unlogged) if drawn else nullcontext():
            loss, call = self._loss(model, inputs)
        self._record(call)
        if drawn:
            found = {"logps": call.logps_NT, "entropies": call.entropies_NT}
            self._regrouped.append({**inputs, **found})
        if len(self._regrouped) == self.args.regrouped_together:
            for batch in batching.as_drawn(self._regrouped):
                known = batch.pop("logps"), batch.pop("entropies"), None
                with torch.no_grad(), replaced(self, _known=known):
                    self._loss(model, batch)
            self._regrouped.clear()
        if trained.training and not loss.requires_grad:
            loss = update.with_zero_gradients(loss, trained)
        return loss

    def _loss(self, model, inputs: dict[str, Any]) -> tuple[Tensor, loss_pass.LossPass]:
        """TRL's loss, with the terms that it lacks, and what is known of its computation."""
        held = {name: getattr(self, name) for name in loss_pass.HELD}
        call, setting = loss_pass.LossPass(inputs, self.args, held), self._setting()
        with (
            replaced(self, _loss_pass=call, **call.switched),
            left_out.bonus_of_kept_groups(self, inputs),
            left_out.means_of_kept_rows(setting, call),
        ):
            loss = super()._compute_loss(model, call.shown)
            accumulated: Any = self.current_gradient_accumulation_steps if setting.training else 1.0
            for term in call.added_terms(setting, accumulated):
                loss = loss + term
                if self._entropy_bonus_enabled:
                    call.log_added(setting, term.detach(), accumulated)
        return loss, call

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, **kwargs
    ):
        forward = partial(super()._get_per_token_logps_and_entropies, **kwargs)
        rows = (input_ids, attention_mask, logits_to_keep, batch_size)
        if self._known is not None:
            result = self._known
        elif self._passes is not None and is_text_forward(kwargs):
            passes = partial(self._passes, of_responses(forward, model))
            idle_N = self._idle_rows(model)
            result = passes(*rows) if idle_N is None else without_gradient_of(idle_N, passes, *rows)
        else:
            result = forward(model, *rows)
        if self._loss_pass is not None:
            self._loss_pass.found(result[0], result[1])
            self.mismatch.correct(self._loss_pass)
        return result

    def _idle_rows(self, model: Any) -> Tensor | None:
        """The rows of the loss that need no gradient; None if all do, or all have to take part:
        processes reduce their gradients together, and sharded weights are gathered together."""
        several = self.accelerator.num_processes > 1
        together = several and (self.accelerator.sync_gradients or needs_all_processes(model))
        training = self.model.training and torch.is_grad_enabled()
        if self._loss_pass is None or not training or together or self._is_sharded():
            return None
        return self._loss_pass.idle_rows() if self.args.skip_idle_rows else None

    def _record(self, call: loss_pass.LossPass) -> None:
        mode = "train" if self.model.training else "eval"
        self.mismatch.record(call)
        if mode == "train" and self.args.leaves_rows_out and not self.aux_loss_enabled:
            self.idle_steps.add(call.mask_NT)
        self.ratio_sums.add(mode, call.ratio_sums())

    # Evaluation and logging

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Evaluate as `one_shot.py` does, without a loss; or as TRL does, if configured."""
        if self.args.evaluation == "one_shot":
            return one_shot.evaluate_one_shot(self, eval_dataset, metric_key_prefix)
        mismatch = MismatchCorrection(self.args)
        mismatch.saves_a_forward = False  # TRL's evaluation has its own forward pass
        with one_shot.apart_from_training(self), replaced(self, mismatch=mismatch):
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As TRL, with our metrics added to `logs` in place, so that an evaluation also returns
        them."""
        mode = "train" if self.model.training else "eval"
        logs.update(self.ratio_sums.metrics(mode, self.accelerator))
        if mode == "train":
            logs.update(self.mismatch.metrics(self.accelerator.gather))
        super().log(logs, start_time)

    # Checkpoints

    def _save_checkpoint(self, model, trial) -> None:
        """As TRL, and seal the checkpoint once every process has written its part. Older ones are
        deleted only after that: by one process, or with `save_on_each_node` by one on every node.
        """
        run = Path(self._get_output_dir(trial=trial))
        checkpoint = run / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        with carried.sealed(self, checkpoint), replaced(self.args, save_total_limit=None):
            super()._save_checkpoint(model, trial)
        if self.args.should_save:
            carried.rotate(run, self.args.save_total_limit, self.state.best_model_checkpoint)

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        carried.load_onto_numbered_cpus()
        with carried.tied_weights_known(self.model):
            super()._load_from_checkpoint(resume_from_checkpoint, model)
        carried.load_trained_adapter(self, resume_from_checkpoint)

    def _get_train_sampler(self, dataset=None):
        self.train_sampler = super()._get_train_sampler(dataset)
        return self.train_sampler

    def _run_epoch(self, *args, **kwargs) -> None:
        """As TRL; but the first epoch of a resumed run starts where the checkpoint was written, and
        a run that is resumed at its last step trains no more."""
        checkpoint, trained = kwargs["resume_from_checkpoint"], kwargs["epochs_trained"]
        if checkpoint is not None and kwargs["epoch"] == trained:
            carried.skip_epochs(self, trained)
            carried.restore(self, Path(checkpoint))
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
        else:
            super()._run_epoch(*args, **kwargs)

    def _finalize_training(self, *args, **kwargs):
        with carried.only_of_the_run():
            return super()._finalize_training(*args, **kwargs)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """As TRL, whose card has None for a base that is a folder, and for the trained model."""
        super().create_model_card(*args, **kwargs)
        if self.is_world_process_zero():
            config: Any = self.model.config
            run = Path(str(self.args.output_dir))
            card, base = run / "README.md", Path(config.name_or_path)
            name = "/".join(base.parts[-2:]) or "a new model"
            text = card.read_text(encoding="utf-8").replace(
                "[None](https://huggingface.co/None)", f"`{name}`"
            )
            card.write_text(text.replace('model="None"', f'model="{run}"'), encoding="utf-8")
