"""How often is the two-part rule wrong where the truth is planted? `python -m
tests.support.planted_truths` prints the table of recipes/studies/README.md (ten minutes).

Outcomes are like those of the miniature: base 0.35, a run that succeeds ends near 0.80. Every
threshold is found from the reference runs themselves.
"""

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trl_ablate.run.untrusted import markdown_table
from trl_ablate.study import TwoPart, decide
from trl_ablate.study.two_part import benjamini_hochberg
from trl_ablate.study.verdict import Verdict

ARMS, RUNS, POOL, OF_A_PAGE = 16, 32, 64, 4
BASE, GOOD, SD, MARGIN, NOISE = 0.35, 0.80, 0.031, 0.03, 0.006
Rng = np.random.Generator
Draw = Callable[[Rng, int, float], np.ndarray]
"""Outcomes of n runs whose mean is shifted by a number."""


@dataclass(frozen=True)
class Truth:
    """How runs end, and where the arms of a study lie."""

    reference: Draw
    arm: Draw
    shifts: tuple[float, ...] = (0.0,)
    """Of the arms, in turn."""
    base: float = BASE

    def study(self, rng: Rng) -> Iterator[tuple[float, TwoPart]]:
        """The shift of every arm, and what was decided at the study's level."""
        pool = self.reference(rng, POOL, 0.0)
        for number in range(ARMS):
            shift = self.shifts[number % len(self.shifts)]
            yield shift, decide(
                arm=[*self.arm(rng, RUNS, shift)], reference=[*pool], base=self.base, pool=POOL,
                level=0.05 / ARMS, margin=MARGIN, noise=NOISE,
            )  # fmt: skip


def normal(sd: float) -> Draw:
    return lambda rng, n, shift: GOOD + shift + sd * rng.standard_normal(n)


def failing(share: float) -> Draw:
    def draw(rng: Rng, n: int, shift: float) -> np.ndarray:
        good = normal(SD)(rng, n, shift)
        return np.where(rng.random(n) < share, rng.uniform(0.02, 0.45, n), good)

    return draw


def skewed(rng: Rng, n: int, shift: float) -> np.ndarray:
    """Exponential to the left: the best runs are alike."""
    return GOOD + shift + SD * (1 - rng.exponential(size=n))


def of_bases(rng: Rng, n: int, shift: float) -> np.ndarray:
    """Every fourth run has the same base; a base moves its runs of all arms alike."""
    return normal(SD)(rng, n, shift) + np.array([-0.04, -0.01, 0.01, 0.04])[np.arange(n) % 4]


def own_of_bases(rng: Rng, n: int, shift: float) -> np.ndarray:
    """The same bases, each of which favours some arms, at random."""
    return of_bases(rng, n, shift) + 0.02 * rng.standard_normal(4)[np.arange(n) % 4]


BOTH = (0.0, MARGIN, 0.0, -MARGIN)
TRUTHS: dict[str, Truth] = {
    "equal": Truth(normal(SD), normal(SD)),
    "half of the arms at the margin": Truth(normal(SD), normal(SD), BOTH),
    "all at the margin, sd 0.02": Truth(normal(0.02), normal(0.02), (MARGIN, -MARGIN)),
    "30 % of the runs fail": Truth(failing(0.3), failing(0.3)),
    "5 % fail, half at the margin": Truth(failing(0.05), failing(0.05), BOTH),
    "arms with three times the sd": Truth(normal(0.02), normal(0.06)),
    "reference with three times the sd": Truth(normal(0.06), normal(0.02)),
    "skewed": Truth(skewed, skewed),
    "threshold amid the runs": Truth(normal(SD), normal(SD), base=GOOD - 0.05),
    "below the noise of evaluation": Truth(normal(0.003), normal(0.003)),
    "correlated by base": Truth(of_bases, of_bases),
}


NOT_COVERED = Truth(own_of_bases, own_of_bases)
"""Equal on average over all bases, but not over these four: the rule answers about these four."""


def is_false(shift: float, found: TwoPart) -> bool:
    """Whether a claim contradicts the truth; shares are equal in every truth."""
    if found.verdict is Verdict.EQUIVALENT:
        return abs(shift) >= MARGIN
    right = Verdict.BETTER if shift > 0 else Verdict.WORSE
    return found.verdict.differs and (shift == 0 or found.verdict is not right)


def false_claims(truth: Truth, studies: int, seed: int = 0) -> tuple[float, float]:
    """The share of studies with a false claim about any arm, and the mean share of false ones among
    the claims of a page of four studies that pass the correction over all its claims: of a
    difference and of an equivalence, for every arm of every study."""
    rng = np.random.default_rng(seed)
    found = [[*truth.study(rng)] for _ in range(studies)]
    pages = (itertools.chain(*found[n : n + OF_A_PAGE]) for n in range(0, studies, OF_A_PAGE))
    wrong = [any(is_false(*arm) for arm in study) for study in found]
    return float(np.mean(wrong)), float(np.mean([_false_discoveries([*page]) for page in pages]))


def _false_discoveries(arms: Sequence[tuple[float, TwoPart]]) -> float:
    claims = [(found.p_difference, shift == 0) for shift, found in arms]
    claims += [(found.p_equivalent, abs(shift) >= MARGIN) for shift, found in arms]
    passed = np.array(benjamini_hochberg([p for p, _ in claims])) <= 0.05
    false = np.array([wrong for _, wrong in claims])
    return (passed & false).sum() / max(1, passed.sum())


def power(sd: float, studies: int, seed: int = 0) -> tuple[float, float, float]:
    """Found: a difference of the margin, an equivalence; and the runs an arm needs on average."""
    rng = np.random.default_rng(seed)
    truth = Truth(normal(sd), normal(sd), (0.0, MARGIN))
    arms = [arm for _ in range(studies) for arm in truth.study(rng)]
    better = [found.verdict is Verdict.BETTER for shift, found in arms if shift]
    same = [found.verdict is Verdict.EQUIVALENT for shift, found in arms if not shift]
    return float(np.mean(better)), float(np.mean(same)), float(np.mean([x.n for _, x in arms]))


def main(studies: int) -> None:
    header = ("truth", "studies with a false claim", "false among the claims of a page")
    shares = [
        (name, *(f"{share:.2%}" for share in false_claims(truth, studies)))
        for name, truth in TRUTHS.items()
    ]
    share, _ = false_claims(NOT_COVERED, studies // 4)
    covered = f"not covered: four bases, each of which favours some arms: {share:.0%}"
    powers = []
    for sd in (0.024, 0.031, 0.038):
        better, same, runs = power(sd, studies // 4)
        powers.append((f"{sd}", f"{better:.2f}", f"{same:.2f}", f"{runs:.0f}"))
    of_powers = ("sd between runs", "difference of 0.03", "equivalent", "runs an arm")
    tables = markdown_table(header, shares), covered, markdown_table(of_powers, powers)
    sys.stdout.write("\n\n".join(tables) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4000)
