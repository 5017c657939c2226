"""Whether two answers are equal."""
