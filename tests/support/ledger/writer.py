"""A writer process: ``python -m tests.support.ledger.writer URL SEED TRANSACTIONS ACCOUNTS``.

Each transaction changes one to three accounts, each with its event; 15 % are rolled back, some commit late while others
go on. On PostgreSQL an event id of every rolled-back event is noted on a connection of its own, so that the ledger can
say that none of them came out. With ``LEDGER_AFTER_S`` every event is a scheduled one, due so many seconds later; with
``LEDGER_PER_S`` it begins at most so many transactions a second.
"""

from __future__ import annotations

import os
import random
import sys
import time
from datetime import timedelta

from tests.support.ledger.app import AccountChanged, begin, connect, execute, outbox

ROLLED_BACK = 0.15
LATE = 0.05
PER_S = float(os.environ.get("LEDGER_PER_S", "inf"))
AFTER = timedelta(seconds=float(os.environ["LEDGER_AFTER_S"])) if "LEDGER_AFTER_S" in os.environ else None


def main(url: str, seed: int, transactions: int, accounts: int) -> None:
    chance = random.Random(seed)
    connection = connect(url)
    undone: list[str] = []
    began = time.monotonic()
    for number in range(transactions):
        time.sleep(max(0.0, began + number / PER_S - time.monotonic()))  # the workload: a steady load
        begin(connection)
        names = sorted(f"a{number}" for number in chance.sample(range(accounts), chance.choice((1, 1, 1, 2, 3))))
        ids = []
        for name in names:
            ((version,),) = execute(
                connection,
                "update ledger_account set version = version + 1 where account = :account returning version",
                account=name,
            )
            changed = AccountChanged(name, version)
            event_id = str(outbox.add(connection, changed, aggregate_version=version, after=AFTER))
            execute(
                connection,
                "insert into ledger_change (account, version, event_id) values (:account, :version, :event_id)",
                account=name,
                version=version,
                event_id=event_id,
            )
            ids.append(event_id)
        if chance.random() < LATE and not url.startswith("sqlite"):
            time.sleep(chance.uniform(0.05, 0.5))  # the workload: a transaction that commits late
        if chance.random() < ROLLED_BACK:
            connection.rollback()
            undone += ids
        else:
            connection.commit()
    begin(connection)
    for event_id in undone:
        execute(connection, "insert into ledger_undone (event_id) values (:event_id)", event_id=event_id)
    connection.commit()
    connection.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
