"""`AblationTrainer`: the switches wired into TRL's `GRPOTrainer`. Wiring only, no mathematics.

No code of TRL is copied. Each override calls `super()` and changes its input or its output:

    _calculate_rewards                     keep the gathered rewards
    __init__                               configure the vLLM engine while TRL builds it
    _generate_and_score_completions        replace TRL's advantages by ours, drop groups; one
                                           forward pass less
    _prepare_inputs                        trim and regroup the microbatches of a rollout batch
    _compute_loss                          length norm and surrogate, for the duration of the call;
                                           add terms that TRL lacks
    _get_per_token_logps_and_entropies     no padding through the model; keep the loss's
                                           log-probabilities; correct the engine's
    _generate_single_turn, _generate       stop strings end completions, and count as their end
    evaluate                               one-shot evaluation, or TRL's with its own sampling
    log                                    add metrics that were summed since the last row
    _load_from_checkpoint                  load the trained adapter, if there are two
    _get_train_sampler                     keep it
    _run_epoch                             restore all state of a checkpoint; skip an epoch after
                                           the last step
    _save_checkpoint                       save all that resuming needs; seal it when it is whole
    create_model_card                      name a base that is a folder
    _finalize_training                     delete no folder that only looks like a checkpoint
    (several)                              `phases`: measure the time of each part of a step

`tests/contract` tests each override against the installed TRL.
"""

import inspect
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOTrainer

from trl_ablate.config import AblationConfig, own_config
from trl_ablate.rewards.own.chosen import Rewards as RewardsOfSet
from trl_ablate.trainer import carried
from trl_ablate.trainer.architectures import check_packs, may_move_rows, may_share
from trl_ablate.trainer.batching import (
    BONUS_WEIGHTS,
    DRAWN,
    ROW_WEIGHTS,
    is_text,
    response_mask,
    weigh_microbatches,
    without_needless_padding,
)
from trl_ablate.trainer.decoding import without_ended_rows
from trl_ablate.trainer.engine import engine_as_configured
from trl_ablate.trainer.forward_passes import (
    Passes,
    is_text_forward,
    needs_all_processes,
    of_responses,
    positions_of_a_pass,
    without_gradient_of,
)
from trl_ablate.trainer.generation import (
    StopStrings,
    backend_generation_kwargs,
    check_turns,
    evaluation_generation_kwargs,
    sampling_by,
)
from trl_ablate.trainer.groups import (
    Rewards,
    Scored,
    check_outcome_gate,
    scored,
    told_apart,
    with_advantages,
)
from trl_ablate.trainer.loss_metrics import RatioSums, RowMetrics, metric_sums, sums_of_ratio
from trl_ablate.trainer.loss_pass import (
    HELD,
    LossPass,
    added_terms,
    bonus_of_kept_groups,
    kl_in_reward,
    kl_penalty,
)
from trl_ablate.trainer.mismatch import MismatchCorrection
from trl_ablate.trainer.one_shot import apart_from_training, check_sets, evaluate_one_shot
from trl_ablate.trainer.resampling import Resampling, check_dataset
from trl_ablate.trainer.rollouts import (
    Described,
    Setting,
    counted,
    describe,
    rollout_rows,
    without,
)
from trl_ablate.trainer.sampler import (
    Sampler,
    check_sampled_here,
    check_text,
    forward_truncated,
    sampler_logps,
)
from trl_ablate.trainer.temporary import replaced
from trl_ablate.trainer.update import (
    GRPOStepClock,
    IdleSteps,
    StepPhases,
    with_zero_gradients,
)


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
        args.generation_kwargs = backend_generation_kwargs(args)
        with engine_as_configured(args):
            super().__init__(model, reward_funcs, args, *more, **keywords)
        self.stop = StopStrings(
            args.stop or (), self._tokenizer, self.eos_token_ids, args.min_tokens
        )
        config: Any = self.model.config
        trims = args.trim_microbatches and may_move_rows(self.model, aux_loss=self.aux_loss_enabled)
        if args.padding_free:
            check_packs(config.model_type, trimmed=trims)
        self._passes: Passes | None = None
        """How forward passes are made; None: with TRL's padding."""
        if trims:
            self._passes = Passes(
                multiple=args.trimmed_to_multiple_of,
                least_saved=positions_of_a_pass(self.accelerator),
                packs=args.padding_free,
                shares=args.shares_prompts and may_share(self.model),
            )
        self._training_logs = self._logs
        factories: Any = self.environment_factories
        self.evaluation_environments = {name: [] for name in factories or ()}
        self.described = Described([], [])
        self.reward_func_names = told_apart(self.reward_func_names)
        check_outcome_gate(args, self.reward_func_names)
        if args.group_filter == "resample":
            check_dataset(self.train_dataset)
        self.rewards_of_sets: dict[str, RewardsOfSet] = {}
        """Of the evaluation sets that have their own."""
        self._rewards_NF = torch.empty(0)
        self.generated_tokens = 0
        self.idle_steps = IdleSteps(self._metrics["train"], self._setting().total)
        self.callback_handler.add_callback(self.idle_steps)
        self._loss_pass: LossPass | None = None
        self.ratio_sums = RatioSums()
        self._row_metrics = RowMetrics(self._metrics["train"], self._setting().gather)
        self.mismatch = MismatchCorrection(args)
        check_sampled_here(args, self.rollout_func)
        check_turns(self)
        self.sampler = Sampler(args)
        clock = GRPOStepClock(args.grpo_steps_per_optimizer_step)
        self.callback_handler.callbacks.insert(1, clock)  # behind `DefaultFlowCallback`
        self.phases = StepPhases(self._metrics["train"], memory=args.log_memory)
        self.callback_handler.add_callback(self.phases)
        if args.eval_strategy != "no":
            check_sets(self)

    # The signature that `inspect` and editors show. `*more` passes on what each TRL release takes.
    __init__.__signature__ = inspect.signature(GRPOTrainer.__init__)  # pyright: ignore[reportFunctionMemberAccess]

    def create_accelerator_and_postprocess(self) -> None:
        """FSDP 2 would round log-probabilities, which its forward pass returns, to bfloat16."""
        super().create_accelerator_and_postprocess()
        plugin: Any = self.accelerator.state.fsdp_plugin if self.is_fsdp_enabled else None
        if plugin and plugin.fsdp_version == 2 and plugin.mixed_precision_policy:
            policy = replace(plugin.mixed_precision_policy, output_dtype=None)
            plugin.mixed_precision_policy = policy

    # Advantages

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        with self.phases.phase("reward"):
            rewards_NF = super()._calculate_rewards(
                inputs, prompts, completions, completion_ids_list
            )
        if "answer" in inputs[0]:
            self._log_completion_extra("ground_truth", [row["answer"] for row in inputs])
        return rewards_NF

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        with self.phases.phase("rollout"):
            found = self.scored(inputs)
            if self.model.training and self.args.group_filter == "resample":
                padding: Any = self._tokenizer.pad_token_id
                source = (self.train_dataset, self._logs, padding, self._step)
                found = Resampling(self._setting(), self.scored, *source).filled(found)
        return self.with_advantages(found)

    def _setting(self) -> Setting:
        training = self.model.training
        group: Any = self.num_generations if training else self.num_generations_eval
        metrics = self._metrics["train" if training else "eval"]
        return Setting(self.args, self.accelerator, metrics, training, group)

    def scored(self, inputs: list[dict[str, Any]], turn: int = 0) -> Scored:
        """Generate and score in one call of TRL, the first or a later one of a rollout batch."""
        args, training = self.args, self.model.training
        computed = self._calculate_rewards  # of a subclass, too

        def kept(*given):
            self._rewards_NF = computed(*given)
            return self._rewards_NF

        with replaced(self, _calculate_rewards=kept, **self._left_to_us()):
            output = super()._generate_and_score_completions(inputs)
        if self.mask_truncated_completions and self.stop.strings:
            local = self._setting().local_rows(len(output["completion_mask"]))
            ended = [not truncated for truncated in self.described.truncated[local]]
            output = counted(self._setting(), without(output, ended))
        # Without vLLM, TRL computes no ratio, and the loss only in an update that is on-policy
        lacks_ratio = "importance_sampling_ratio" not in output and "old_per_token_logps" in output
        if lacks_ratio and args.corrects_without_engine and training:
            output["importance_sampling_ratio"] = self.mismatch.ratio(
                output["old_per_token_logps"], output, response_mask(output)
            )
        of_kl_N = None
        if kl_in_reward(args, output):
            before_NT = self._logps_before(output)
            of_kl_N = kl_penalty(self._setting(), output, before_NT, self.beta)
        rewards = Rewards(self._rewards_NF, self.reward_weights, self.reward_func_names)
        lengths, call = self.described.lengths, f"{self._step}-{turn}"
        return scored(self._setting(), output, rewards, lengths, of_kl_N, call)

    def with_advantages(self, found: Scored) -> dict[str, Any]:
        """The batch with our advantages, which replace TRL's in the log of completions, too."""
        bonus = self._entropy_bonus_enabled
        batch, advantages_N = with_advantages(self._setting(), found, bonus=bonus)
        logged = self._logs["advantages"]
        for _ in range(min(len(logged), len(advantages_N))):
            logged.pop()
        logged.extend(advantages_N.tolist())
        if self.model.training:
            self.generated_tokens += found.generated_tokens
            self._metrics["train"]["rollouts/generated_tokens"] = [float(self.generated_tokens)]
        return batch

    def _logps_before(self, batch: dict[str, Any]) -> torch.Tensor:
        """Log-probabilities of the policy before the update, which TRL computes only if needed."""
        if "old_per_token_logps" in batch:
            return batch["old_per_token_logps"]
        ids_NL = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        mask_NL = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        return self._logps(ids_NL, mask_NL, batch["completion_ids"].size(1))

    def _logps(self, ids_NL: torch.Tensor, mask_NL: torch.Tensor, width: int) -> torch.Tensor:
        args, training = self.args, self.model.training
        size = args.per_device_train_batch_size if training else args.per_device_eval_batch_size
        with torch.no_grad():
            found: Any = self._get_per_token_logps_and_entropies(
                self.model, ids_NL, mask_NL, width, batch_size=size
            )
        return found[0]

    def _left_to_us(self) -> dict[str, Any]:
        """Settings of TRL that are off while it generates and scores, because this package does
        their work: masking of truncated completions if there are stop strings, the importance
        correction if it uses the training's own forward pass, and scales that TRL lacks."""
        correct = self.vllm_importance_sampling_correction and not self.mismatch.saves_a_forward
        mask = self.mask_truncated_completions and not self.stop.strings
        known = self.args.scale_rewards in ("group", "batch", "none")
        return {
            "vllm_importance_sampling_correction": correct,
            "mask_truncated_completions": mask,
            "scale_rewards": self.args.scale_rewards if known else "group",
        }

    # Microbatches

    def _prepare_inputs(self, generation_batch):
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        microbatches: Any = self._buffered_inputs
        if not self.model.training or microbatches is before:
            return inputs
        for key in (ROW_WEIGHTS, BONUS_WEIGHTS) if self.loss_type == "bnpo" else (BONUS_WEIGHTS,):
            if key in microbatches[0]:
                weigh_microbatches(microbatches, key, self._setting().total)
        if self.aux_loss_enabled or not all(map(is_text, microbatches)):
            return inputs
        self._buffered_inputs, padding = without_needless_padding(
            microbatches,
            self.args.regrouped_together,
            self._passes,
            idle_apart=self._passes is not None and self.args.skip_idle_rows,
        )
        for name, value in padding.items():
            self._metrics["train"][name].append(value)
        return self._buffered_inputs[self._step % len(self._buffered_inputs)]

    # Loss

    def _compute_loss(self, model, inputs: dict[str, Any]) -> torch.Tensor:
        held = {name: getattr(self, name) for name in HELD}
        loss_pass = LossPass(inputs, self.args, held)
        trained: Any = self.model
        with (
            replaced(self, _loss_pass=loss_pass, **loss_pass.switched),
            bonus_of_kept_groups(self, inputs),
        ):
            loss = super()._compute_loss(model, loss_pass.shown)
            of_training: Any = self.current_gradient_accumulation_steps if trained.training else 1.0
            for term in added_terms(self._setting(), loss_pass, of_training):
                loss = loss + term
            self._record(loss_pass)
        if trained.training and not loss.requires_grad:
            loss = with_zero_gradients(loss, trained)
        return loss

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, **kwargs
    ):
        forward = partial(super()._get_per_token_logps_and_entropies, **kwargs)
        rows = (input_ids, attention_mask, logits_to_keep, batch_size)
        if self._passes is not None and is_text_forward(kwargs):
            passes = partial(self._passes, of_responses(forward, model))
            idle_N = self._idle_rows(model)
            result = passes(*rows) if idle_N is None else without_gradient_of(idle_N, passes, *rows)
        else:
            result = forward(model, *rows)
        if self._loss_pass is not None:
            self._loss_pass.found(result[0], result[1])
            self.mismatch.correct(self._loss_pass)
        return result

    def _idle_rows(self, model: Any) -> torch.Tensor | None:
        """The rows of the loss that need no gradient; None if all do, or all have to take part:
        processes reduce their gradients together, and sharded weights are gathered together."""
        several = self.accelerator.num_processes > 1
        together = several and (self.accelerator.sync_gradients or needs_all_processes(model))
        training = self.model.training and torch.is_grad_enabled()
        if self._loss_pass is None or not training or together or self._is_sharded():
            return None
        return self._loss_pass.idle_rows() if self.args.skip_idle_rows else None

    def _record(self, loss_pass: LossPass) -> None:
        """Record the statistics of a loss; runs with the same replaced values as TRL's loss."""
        mode = "train" if self.model.training else "eval"
        self.mismatch.record(loss_pass)
        leaves_rows_out = self.args.group_filter != "none" or self.args.length_norm == "nonzero"
        if mode == "train" and leaves_rows_out:
            self.idle_steps.add(loss_pass.mask_NT)
        self.ratio_sums.add(mode, sums_of_ratio(loss_pass))
        if DRAWN in loss_pass.inputs:
            sums = metric_sums(loss_pass)
            self._row_metrics.add(loss_pass.inputs[DRAWN], sums, self.args.regrouped_together)

    # Generation

    def _generate_single_turn(
        self, prompt_ids, images, multimodal_fields, num_generations, **kwargs
    ):
        training = self.model.training
        with self._sampling_weights():
            with self._decoding(), self.stop.known_to(self.model_wrapped, self.accelerator):
                completion_ids, logprobs = super()._generate_single_turn(
                    prompt_ids, images, multimodal_fields, num_generations, **kwargs
                )
            self.model.train(training)  # continuous batching leaves it in training mode
            if not self.use_vllm:
                completion_ids = [self.stop.cut(ids) for ids in completion_ids]
            if training and self.args.sampler_differs and logprobs is None:
                check_text(images)
                logprobs = self._sampler_logps(prompt_ids, completion_ids)
        return completion_ids, logprobs

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
            truncated = partial(forward_truncated, self.model, self.args, self.eos_token_ids)
            forward = self.accelerator.autocast()(truncated)
        padding: Any = self._tokenizer.pad_token_id
        return sampler_logps(forward, prompt_ids, completion_ids, padding, self.accelerator.device)

    def _is_sharded(self) -> bool:
        return self.is_fsdp_enabled or self.is_deepspeed_enabled

    def _decoding(self):
        """Decoding by transformers, without the rows that have ended where that is possible."""
        if self.use_vllm or self._is_sharded() or not self.args.drop_ended_rows:
            return nullcontext()
        return without_ended_rows(self.model_wrapped, self.accelerator, self.generation_config)

    def _generate(self, prompts: list):
        generated = super()._generate(prompts)
        # A rollout function may return tensors
        ids = [one if isinstance(one, list) else [*map(int, one)] for one in generated[1]]
        self._completion_ids = ids
        self.described = describe(self._setting(), self.stop, self._tokenizer, ids, generated[2])
        return generated

    # Evaluation and logging

    def latest_rollouts(self) -> list[dict[str, Any]]:
        """The last rollout batch of training, a row per completion; unreported values are None."""
        return rollout_rows(self._training_logs, self.reward_func_names, self.reward_weights)

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Evaluate as `one_shot.py` does, without a loss; or as TRL does, if configured."""
        if self.args.evaluation == "one_shot":
            return evaluate_one_shot(self, eval_dataset, metric_key_prefix)
        mismatch = MismatchCorrection(self.args)
        mismatch.saves_a_forward = False  # TRL's evaluation has its own forward pass
        with (
            sampling_by(self, evaluation_generation_kwargs(self.args)),
            apart_from_training(self),
            replaced(self, mismatch=mismatch),
        ):
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

    def _finalize_training(self, *args, **kwargs):
        with carried.only_of_the_run():
            return super()._finalize_training(*args, **kwargs)
