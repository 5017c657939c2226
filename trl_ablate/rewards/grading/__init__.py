"""Deciding whether two answers are equal."""
