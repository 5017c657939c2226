"""Reward functions for completions, and the grader that compares answers."""

from trl_ablate.rewards.functions import grader_of, score, score_batch
from trl_ablate.rewards.grading.grader import MathGrader
from trl_ablate.rewards.own.chosen import build_rewards

__all__ = ["MathGrader", "build_rewards", "grader_of", "score", "score_batch"]
