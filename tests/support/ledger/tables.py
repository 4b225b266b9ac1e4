"""The ledger's own tables in the application's database."""

from __future__ import annotations

import contextlib

from tests.support.ledger.app import TABLES, begin, connect, execute


def make_tables(url: str, accounts: int) -> None:
    """The tables, and ``accounts`` accounts without a change."""
    with contextlib.closing(connect(url)) as connection:
        begin(connection)
        for table in TABLES:
            execute(connection, table)
        for number in range(accounts):
            execute(connection, "insert into ledger_account values (:name, 0)", name=f"a{number}")
        connection.commit()
