"""What no CPU can show, in one command: `trl-ablate bench gpu`.

    parts/     one file a part, each with a `measure`: what it does on the card, and what must hold
    registry   the parts in order, with their time limits
    one        one part in its own process: its result, or why there is none
    running    part after part, within a budget; results are written after each
    page       the results as Markdown

A part runs in its own process, so that a crash, a hang or a lack of memory in one does not stop the
others. With `--device cpu --toy` the same code runs at toy size. The page is
`trl_ablate/bench/gpu/README.md`.
"""
