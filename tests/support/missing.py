"""What a test does without the server it needs."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def missing(problem: str) -> NoReturn:
    """Skip with the reason; with RELEVO_REQUIRE_SERVICES=1 (as in CI) fail."""
    if os.environ.get("RELEVO_REQUIRE_SERVICES") == "1":
        pytest.fail(problem, pytrace=False)
    pytest.skip(problem)
