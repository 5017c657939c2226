"""Settings, questions and a reward of small trainings on the CPU."""

ON_CPU = {
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "report_to": "none",
    "save_strategy": "no",
    "disable_tqdm": True,
}
"""Nothing that takes a GPU, time or disk."""

SMALL = {
    **ON_CPU,
    "logging_steps": 1,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "num_generations": 4,
    "learning_rate": 1e-2,
    "seed": 0,
}
"""Two groups of four completions a step, every step logged, at a rate that moves weights."""

PROMPTS = [f"User: {a}+{a + 3}=?\nAssistant: <think>" for a in range(11, 27)]


def digits(completions, **kwargs):
    """A reward that any text has: the share of a completion's characters that are digits."""
    return [sum(c.isdigit() for c in text) / max(1, len(text)) for text in completions]
