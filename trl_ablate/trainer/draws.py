"""The random numbers of `torch.multinomial`, for the rows that need them alone.

`torch.multinomial` divides each probability by an exponential draw. A batch that rows have left
still takes the draws of all of them, so that a row has its own draws and the generator ends in the
same state. On a CPU, torch makes an exponential draw of one float64 that is uniform; to make the
uniform ones of all rows, and the logarithms of the rows that remain, takes a quarter of the time.
"""

from functools import cache

import torch


def exponential_draws(like_MV: torch.Tensor, count: int, places_M: torch.Tensor) -> torch.Tensor:
    """Exponential draws for the rows `places_M` of `count` rows, `(M, V)`."""
    width = like_MV.size(1)
    if like_MV.device.type != "cpu" or not made_of_uniform_draws():
        return like_MV.new_empty(count, width).exponential_(1)[places_M]
    uniform_NV = torch.empty(count, width, dtype=torch.float64).uniform_()
    uniform_MV = uniform_NV if len(places_M) == count else uniform_NV[places_M]
    return uniform_MV.neg_().log1p_().neg_().to(like_MV.dtype)


@cache
def made_of_uniform_draws() -> bool:
    """Whether this build of torch makes exponential draws as described above."""
    seed, count = 0, 5000  # enough for the code that works on many numbers at once
    one, other = (torch.Generator().manual_seed(seed) for _ in range(2))
    draws = torch.empty(count).exponential_(1, generator=one)
    uniform = torch.empty(count, dtype=torch.float64).uniform_(generator=other)
    same = torch.equal(draws, uniform.neg_().log1p_().neg_().float())
    return same and torch.equal(one.get_state(), other.get_state())
