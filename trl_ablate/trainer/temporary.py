"""Values that hold for a block: the one way in which TRL's objects are changed for a while."""

from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(holder: Any, **values: Any):
    """Attributes of an object, or of a module, have other values until the end of the block.

    Each has to exist, so that a name that TRL no longer reads is an error. One that the object had
    from its class, such as a method, is its class's again afterwards.
    """
    missing = sorted(values.keys() - dir(holder))
    if missing:
        raise AttributeError(f"{type(holder).__name__} has no {', '.join(missing)} to replace")
    own = vars(holder)
    kept = {name: own[name] for name in values if name in own}
    try:
        for name, value in values.items():
            setattr(holder, name, value)
        yield
    finally:
        for name in values:
            if name in kept:
                setattr(holder, name, kept[name])
            elif name in own:
                delattr(holder, name)
