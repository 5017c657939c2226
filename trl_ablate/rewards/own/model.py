"""A reward model as a function, for the places where TRL does not call it: sets and checks."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import AutoTokenizer
from trl.data_utils import apply_chat_template, is_conversational

AT_ONCE = 16
"""Texts of one forward pass: a whole evaluation set would not fit into memory."""


class ModelReward:
    """Grades a prompt with its completion, as TRL does with a sequence classification model."""

    def __init__(self, model: Any, chat_template_kwargs: Mapping[str, Any] | None = None):
        name = model.config._name_or_path
        self.model, self.__name__ = model, name.split("/")[-1]
        self._tokenizer: Any = AutoTokenizer.from_pretrained(name)
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        model.config.pad_token_id = self._tokenizer.pad_token_id
        self._kwargs = dict(chat_template_kwargs or {})
        model.eval()

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **given: Any
    ) -> list[float]:
        texts = [self._text(*pair) for pair in zip(prompts, completions, strict=True)]
        rewards: list[float] = []
        for start in range(0, len(texts), AT_ONCE):
            inputs = self._tokenizer(
                text=texts[start : start + AT_ONCE], return_tensors="pt", padding=True,
                padding_side="right", add_special_tokens=False,
            )  # fmt: skip
            with torch.inference_mode():
                logits = self.model(**inputs.to(self.model.device)).logits
            rewards += logits[:, 0].float().tolist()
        return rewards

    def _text(self, prompt: Any, completion: Any) -> str:
        if not is_conversational({"prompt": prompt}):
            return prompt + completion
        messages = {"messages": prompt + completion}
        return apply_chat_template(messages, self._tokenizer, **self._kwargs)["text"]
