"""The one error of this package."""

from __future__ import annotations


class ServiceError(Exception):
    """A step failed. The message says which one and what to do about it."""
