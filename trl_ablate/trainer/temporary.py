"""Temporary attribute values: the only way in which TRL's objects are changed within a block."""

from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(holder: Any, **values: Any):
    """Set attributes of an object or module until the end of the block, then restore them.

    Each attribute must exist, so a name that TRL has removed raises an error. An attribute that is
    defined by the class, such as a method, is removed from the object again.
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
