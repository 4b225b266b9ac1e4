from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import Cli


@pytest.fixture
def relevo(tmp_path: Path) -> Cli:
    """The real command, in an empty folder."""
    return Cli(tmp_path)
