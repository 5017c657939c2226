"""What fits on a machine and how long a step takes, on paper. No torch.

    sizes     cards and decoders by name: memory, bandwidth and speed; parameters and KV cache
    setup     every assumption with its value, its option and its meaning; what a recipe says of it
    estimate  bytes on one card, seconds of the phases of a step, what fits and what would

The command is `trl-ablate plan`; the page is `trl_ablate/plan/README.md`.
"""
