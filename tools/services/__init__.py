"""Real servers for the tests, without containers.

From the command line `python -m tools.services up`; from a test `service("kafka").kill()`, `service("kafka").start()`.
"""

from __future__ import annotations

from .base import Service
from .errors import ServiceError
from .registry import names, service

__all__ = ["Service", "ServiceError", "names", "service"]
