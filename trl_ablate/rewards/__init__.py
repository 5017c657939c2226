"""Reward functions for completions, and the grader that compares answers."""

from trl_ablate.rewards.functions import build_rewards, grader_of
from trl_ablate.rewards.grading.grader import MathGrader
from trl_ablate.rewards.scoring import score, score_batch

__all__ = ["MathGrader", "build_rewards", "grader_of", "score", "score_batch"]
