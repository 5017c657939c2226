"""A task and a model small enough to train on two CPU cores.

The task is two-digit sums, solved in written steps. The tokenizer has a few hundred tokens. The
model is a Qwen2 of about 0.4 M parameters, trained on many such solutions, most of them in the
wrong format and half of them wrong. It is to these sums what a 1.5 B base model is to MATH: it can
solve more than its first answers show, and reinforcement learning improves it in a minute or two.

Nothing is downloaded, and the user has nothing to tune. The model is built from a seed, once, and
kept in the user's cache folder.
"""

from trl_ablate.miniature.cache import Stage, build, cache_key
from trl_ablate.miniature.sums import problems
from trl_ablate.miniature.tokens import tokenizer

__all__ = ["Stage", "build", "cache_key", "problems", "tokenizer"]
