"""Tasks and models small enough to train on two CPU cores.

A world of the miniature is a task with a Qwen2 of 0.1 to 3 M parameters and a tokenizer of a few
hundred tokens. The model is trained on many solutions of the task, most of them wrong or in the
wrong format. It is to its task what a 1.5 B base model is to MATH: it can solve more than its first
answers show, and reinforcement learning improves it in a minute or two.

Nothing is downloaded, and the user has nothing to tune. A model is built from a seed, once, and
kept in the user's cache folder. README.md describes the worlds.
"""

from trl_ablate.miniature.cache import build, cache_key
from trl_ablate.miniature.registry import problems
from trl_ablate.miniature.tokens import tokenizer
from trl_ablate.miniature.world import Stage, World

__all__ = ["Stage", "World", "build", "cache_key", "problems", "tokenizer"]
