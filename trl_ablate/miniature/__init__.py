"""A world small enough to learn on two CPU cores.

Two-digit sums whose working is written out in steps, a tokenizer of a few hundred tokens, and a
Qwen2 of about 0.4 M parameters that has read plenty of such solutions, most of them in the wrong
format and half of them wrong. It stands to these problems as a 1.5 B base model stands to MATH:
it knows more than it shows, and reinforcement learning can bring it out within a minute or two.

Left out on purpose: anything downloaded, and anything that has to be tuned by the reader. The
model is made on the spot from a seed, once, and kept in the user's cache folder.
"""

from trl_ablate.miniature.cache import Stage, build, cache_key
from trl_ablate.miniature.sums import problems
from trl_ablate.miniature.tokens import tokenizer

__all__ = ["Stage", "build", "cache_key", "problems", "tokenizer"]
