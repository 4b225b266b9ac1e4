"""For tests of applications and of adapters. Names are loaded when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relevo.testing.broker_conformance import BrokerConformance
    from relevo.testing.capture import Captured, captured, expect_forgotten

__all__ = ["BrokerConformance", "Captured", "captured", "expect_forgotten"]

_HOME = {
    "BrokerConformance": "relevo.testing.broker_conformance",
    "Captured": "relevo.testing.capture",
    "captured": "relevo.testing.capture",
    "expect_forgotten": "relevo.testing.capture",
}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value
