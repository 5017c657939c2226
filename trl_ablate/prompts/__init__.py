"""Prompt templates and their texts."""
