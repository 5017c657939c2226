"""Benchmarks: stock TRL and this package do the same work, alternately, in one process.

    synthetic     random models, and random rollouts with recorded or drawn lengths
    train_time    the training phase of a step, and its cost per token by sizes
    step_time     whole steps, with generation and grading; one-shot evaluation
    rollout_time  generation
    reward_time   the grader's pool against math-verify in one process
    timing        alternating rounds, positions, the printed table and the JSON
    gpu/          what no CPU can show, part by part

The command is `trl-ablate bench`.
"""
