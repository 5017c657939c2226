"""Benchmarks: stock TRL and this package do the same work, alternately, in one process.

    synthetic    random models, and random rollouts with recorded or drawn lengths
    train_time   the training phase of a step: stock `GRPOTrainer` against `AblationTrainer`
    step_time    whole steps, with generation and grading
    eval_time    one-shot evaluation against TRL's `evaluate`
    reward_time  the grader's pool against math-verify in one process
    scale_time   cost per token by batch size, length and number of processes
    timing       alternating rounds, the printed table and the JSON
    gpu/               what no CPU can show, part by part

The command is `trl-ablate bench`.
"""
