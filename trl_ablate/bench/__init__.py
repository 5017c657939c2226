"""Benchmarks: stock TRL and this package do the same work, alternately, in one process.

    replay      random rollouts with recorded or drawn lengths, without generation
    training    the training phase of a step: stock `GRPOTrainer` against `AblationTrainer`
    stepping    whole steps, with generation and grading
    evaluating  one-shot evaluation against TRL's `evaluate`
    grading     the grader's pool against math-verify in one process
    scaling     cost per token by batch size, length and number of processes
    tables      medians and spreads, the printed table and the JSON
    gpu/        what no CPU can show, part by part

The command is `trl-ablate bench`.
"""
