"""Benchmarks: the same work done by stock TRL and by this package, in turn, in one process.

    replay     rollouts from a recorded or drawn length distribution, without a model generating
    them
    training   the training phase of a step: stock `GRPOTrainer` against `AblationTrainer`
    grading    answers compared by the pool, and by math-verify one after the other
    evaluating one-shot evaluation against TRL's `evaluate`
    tables     medians, ratios, the table and the JSON

`trl-ablate bench` is their command line.
"""
