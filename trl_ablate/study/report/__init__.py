"""From the runs of a study to an answer."""
