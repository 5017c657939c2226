"""One run, from a resolved recipe to its last checkpoint."""
