"""The catalogue of failures and what docstrings say of it."""

from __future__ import annotations

from tools import failures


def test_rows_are_read_from_docstrings() -> None:
    """One row, several, ranges; other numbers are left alone."""
    assert failures.rows_in("FAILURES row 7, for sources that keep positions") == {7}
    assert failures.rows_in("FAILURES rows 1, 3 and 14: 6 kills") == {1, 3, 14}
    assert failures.rows_in("FAILURES rows 1–3, 9: short. FAILURES row 20") == {1, 2, 3, 9, 20}
    assert failures.rows_in("row 5 of a table") == set()


def test_rows_that_are_named_exist() -> None:
    """A docstring that names row 99 would stand nowhere."""
    known = {row for rows in failures.CATALOGUE.values() for row in rows}
    assert set(failures.tests_by_row()) <= known
