"""The one error a user can cause: a setting, a file or a value that has to change."""


class ConfigurationError(ValueError):
    """One sentence that names the value, what is allowed, and the change to make."""
