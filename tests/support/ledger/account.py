"""Holding both sides against each other."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass

from tests.support.ledger.app import connect, execute


@dataclass(frozen=True)
class Account:
    """What was committed beside what came of it; everything but the first two must be 0."""

    committed: int
    effects: int
    lost: int
    twice: int
    out_of_order: int
    undone_but_seen: int
    unexplained: int
    parked: int
    attempts: int

    @property
    def holds(self) -> bool:
        faults = (self.lost, self.twice, self.out_of_order, self.undone_but_seen, self.unexplained, self.parked)
        return self.committed == self.effects and not any(faults)

    def __str__(self) -> str:
        return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in asdict(self).items())


def take_account(url: str) -> Account:
    """Counts from the database alone: changes and effects are rows of transactions that committed."""
    with contextlib.closing(connect(url)) as connection:

        def count(sql: str) -> int:
            return int(execute(connection, f"select count(*) from {sql}")[0][0])

        return Account(
            committed=count("ledger_change"),
            effects=count("ledger_effect"),
            lost=count(
                "ledger_change c where not exists (select 1 from ledger_effect e where e.event_id = c.event_id)"
            ),
            twice=count("(select event_id from ledger_effect group by event_id having count(*) > 1) as repeated"),
            out_of_order=count("ledger_effect where version <> previous + 1"),
            undone_but_seen=count("ledger_effect e join ledger_undone u on u.event_id = e.event_id"),
            unexplained=count(
                "ledger_effect e where not exists (select 1 from ledger_change c where c.event_id = e.event_id)"
            ),
            parked=count("relevo_held_key where state = 'parked'"),
            attempts=int(execute(connection, "select coalesce(sum(attempts), 0) from relevo_held_key")[0][0]),
        )
