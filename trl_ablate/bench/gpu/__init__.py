"""What no CPU can show, in one command: `trl-ablate bench gpu`.

    parts        the parts in order, with their time limits, and the page of their results
    comparisons  parts that train a random model in several ways on the same rollouts
    whole_runs   parts with an engine, checkpoints or signals
    part_runs    part after part, each in its own process, within a budget; the file of results

A part runs in its own process, so that a crash, a hang or a lack of memory in one does not stop the
others. With `--device cpu --toy` the same code runs at toy size. The page is
`trl_ablate/bench/gpu/README.md`.
"""
