"""Evaluation of a saved model."""
