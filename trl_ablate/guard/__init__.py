"""Rules that detect a failing run."""
