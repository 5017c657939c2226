"""What no CPU can show, in one command: `trl-ablate bench gpu`.

    parts        the parts in order, with their time limits; each in its own process; their page
    comparisons  parts that train a random model in several ways on the same rollouts
    whole_runs   parts with an engine, checkpoints or signals

With `--device cpu --toy` the same code runs at toy size. The page is
`trl_ablate/bench/gpu/README.md`.
"""
