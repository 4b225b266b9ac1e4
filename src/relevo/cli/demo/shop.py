"""Finds the example shop: in a checkout it stands in ``examples/shop``, in an installed package beside this file."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from relevo.errors import ConfigError

TOPICS = ("shop.order", "shop.payment")


def folder() -> Path:
    """The folder of ``shop.py``."""
    here = Path(__file__).resolve().parent
    for candidate in (here / "_shop", here.parents[3] / "examples" / "shop"):
        if (candidate / "shop.py").is_file():
            return candidate
    raise ConfigError("the example shop is not installed; reinstall relevo, or run the demo from a checkout")


def modules() -> tuple[Any, Any]:
    """The shop's own modules ``shop`` and ``database``, imported as its consumers import them."""
    path = str(folder())
    if path not in sys.path:
        sys.path.insert(0, path)
    return importlib.import_module("shop"), importlib.import_module("database")
