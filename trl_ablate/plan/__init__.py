"""What fits on a machine and how long a step takes, on paper. No torch.

    gpus               cards by name, with their published memory, bandwidth and speed
    shapes             decoders by name or from a config.json: parameters, KV cache
    setup              what is asked: every assumption with its value, its option and its meaning
    resolved_settings  what a recipe and its profile say of it
    estimate           bytes on one card, and seconds of the phases of a step
    planning           what fits, and which single changes would fit

The command is `trl-ablate plan`; the page is `trl_ablate/plan/README.md`.
"""
