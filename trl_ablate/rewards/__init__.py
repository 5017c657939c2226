"""Rewards: what a completion is worth, and the grader that model output cannot break."""

from trl_ablate.rewards.functions import build_rewards, grader_of
from trl_ablate.rewards.grading.grader import MathGrader
from trl_ablate.rewards.scoring import score, score_batch

__all__ = ["MathGrader", "build_rewards", "grader_of", "score", "score_batch"]
