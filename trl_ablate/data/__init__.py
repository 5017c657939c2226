"""Questions and reference answers, from wherever they are."""
