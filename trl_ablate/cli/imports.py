"""Imports that a command spares or puts off, so that it starts sooner.

transformers, PEFT and TRL import all that is installed, to look for what they can use. Of that,
most runs use nothing.
"""

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec
from types import ModuleType

SELDOM_USED = ("bitsandbytes", "trackio")
"""PEFT imports the first with torch's compiler, TRL the second with a web server."""


class Later(ModuleType):
    """A module whose code runs when something in it is used; it stays the same object.

    `importlib.util.LazyLoader` runs the code for any attribute, and `inspect` asks every module for
    some. Python asks a package for its path before it imports a part of it.
    """

    def __getattr__(self, name: str):
        if name.startswith("__") and name not in ("__version__", "__path__"):
            raise AttributeError(f"{self.__name__} has no {name}, as it is not used yet")
        self.__class__ = ModuleType  # pyright: ignore[reportAttributeAccessIssue]
        assert self.__spec__ is not None and self.__spec__.loader is not None
        if self.__spec__.submodule_search_locations is not None:
            self.__path__ = self.__spec__.submodule_search_locations
        try:
            self.__spec__.loader.exec_module(self)
        except BaseException:
            sys.modules.pop(self.__name__, None)
            raise
        return getattr(self, name)


def put_off(names: tuple[str, ...] = SELDOM_USED) -> None:
    """Import these modules when they are used, where they are installed."""
    for name in names:
        spec = None if name in sys.modules else find_spec(name)
        if spec is not None:
            sys.modules[name] = module_from_spec(spec)
            vars(sys.modules[name]).pop("__path__", None)
            sys.modules[name].__class__ = Later


@contextmanager
def to_keep() -> Iterator[None]:
    """Import without garbage collection, also in what follows.

    Modules last as long as the process. Without this, looking through them again and again takes a
    fifth of the time of their import, and a quarter of a second each time TRL frees memory.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        atexit.register(gc.unfreeze)  # nanobind reports what is left at the end as leaked


def spare_models() -> None:
    """Skip imports that load models and adapters: a dry run does neither, and they would take more
    than half of its time. transformers imports them to check whether it runs in Kubeflow."""
    from transformers import integrations

    sys.modules["peft"] = None  # pyright: ignore[reportArgumentType]
    integrations.is_kubeflow_available = lambda: False
