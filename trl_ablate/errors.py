"""The one error a user can cause: a setting, a file or a value that has to change."""


class ConfigurationError(ValueError):
    """One sentence that names the value, what is allowed, and the change to make."""


REWARD_RAISED = (
    "reward function '{name}' raised {error} (line {line} of {file}); mend it, then go on with "
    "--resume"
)


class RewardError(RuntimeError):
    """A reward function raised; the sentence names it, and where."""


class PublishError(ConfigurationError):
    """One sentence on what kept a run from being published; the run itself is untouched."""
