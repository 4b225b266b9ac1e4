"""``MODULE:ATTRIBUTE`` to the object, with errors that say what is wrong and what there is."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from relevo.errors import ConfigError, RelevoError, UsageError

T = TypeVar("T")


def import_all(specs: Iterable[str], kind: type[T]) -> list[T]:
    """Import every ``MODULE:ATTRIBUTE`` with the working directory on the path; each must be a ``kind``.

    Raises ``UsageError`` for a wrong form and the same object given twice, ``ConfigError`` for a module or attribute
    that does not exist, an import that fails, and another type.
    """
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    found: list[T] = []
    for spec in specs:
        value = _import(spec, kind)
        if any(value is other for other in found):
            raise UsageError(f"{spec!r} is given twice")
        found.append(value)
    return found


def _import(spec: str, kind: type[T]) -> T:
    module_name, colon, attribute = spec.partition(":")
    if not colon or not attribute or not all(part.isidentifier() for part in module_name.split(".")):
        raise UsageError(f"{spec!r} is not understood: write MODULE:ATTRIBUTE, like shop.consumers:billing")
    module = _module(module_name, spec)
    value = getattr(module, attribute, None)
    if isinstance(value, kind):
        return value
    there = [name for name, each in vars(module).items() if isinstance(each, kind)]
    what = f"the {kind.__name__}s in {module_name} are {', '.join(there)}" if there else f"{module_name} has none"
    if not hasattr(module, attribute):
        near = difflib.get_close_matches(attribute, there or list(vars(module)), n=1)
        hint = f"did you mean {module_name}:{near[0]}?" if near else what
        raise ConfigError(f"{spec!r}: module {module_name!r} has no attribute {attribute!r}; {hint}")
    raise ConfigError(f"{spec!r} is {_a(type(value))}, not {_a(kind)}; {what}")


def _module(name: str, spec: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except RelevoError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(
                f"{spec!r}: there is no module {error.name!r}. Looked in the working directory and on PYTHONPATH"
            ) from error
        raise ConfigError(f"{spec!r}: importing {name} failed: {error}. --debug shows where") from error
    except Exception as error:
        raise ConfigError(
            f"{spec!r}: importing {name} failed: {type(error).__name__}: {error}. --debug shows where"
        ) from error


def _a(kind: type) -> str:
    """``a Consumer``, ``an Outbox``."""
    return f"a{'n' if kind.__name__[:1] in 'AEIOUaeio' else ''} {kind.__name__}"
