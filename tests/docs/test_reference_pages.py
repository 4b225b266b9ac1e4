"""The reference pages that follow from the code say what the code says."""

from __future__ import annotations

import pytest

from tools.docs import FOLDER, pages

PAGES = pages()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_gives(name: str) -> None:
    """If this fails: python -m tools.docs"""
    assert (FOLDER / name).read_text(encoding="utf-8") == PAGES[name]
