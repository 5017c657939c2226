"""Rules that see a run go wrong."""
