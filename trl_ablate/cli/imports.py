"""Imports that a command spares or puts off, so that it starts sooner.

transformers, PEFT and TRL import all that is installed, to look for what they can use. Of that,
most runs use nothing.
"""

import importlib
import sys
from importlib.util import find_spec
from types import ModuleType

SELDOM_USED = ("bitsandbytes", "trackio")
"""PEFT imports the first with torch's compiler, TRL the second with a web server."""


class Later(ModuleType):
    """A module that is imported when something in it is used."""

    def __getattr__(self, name: str):
        if name.startswith("__") and name not in ("__path__", "__version__"):
            raise AttributeError(name)  # `inspect` asks every module for such names
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        module = importlib.import_module(self.__name__)
        self.__dict__.update(vars(module))
        return getattr(module, name)


def put_off(names: tuple[str, ...] = SELDOM_USED) -> None:
    """Import these modules when they are used, where they are installed."""
    for name in names:
        spec = None if name in sys.modules else find_spec(name)
        if spec is not None:
            module = Later(name)
            module.__spec__, module.__file__ = spec, spec.origin
            sys.modules[name] = module


def spare_models() -> None:
    """Skip imports that load models and adapters: a dry run does neither, and they would take more
    than half of its time. transformers imports them to check whether it runs in Kubeflow."""
    from transformers import integrations

    sys.modules["peft"] = None  # pyright: ignore[reportArgumentType]
    integrations.is_kubeflow_available = lambda: False
