"""Holds both sides of the shop against each other; exit code 1 if they differ."""

from __future__ import annotations

import sys

from database import connect
from shop import ledger

from relevo.settings import load


def main() -> int:
    connection = connect(load().database.url)
    found = ledger(connection)
    connection.close()
    print(found)
    print("the ledger holds" if found.holds else "the ledger does NOT hold")
    return 0 if found.holds else 1


if __name__ == "__main__":
    sys.exit(main())
