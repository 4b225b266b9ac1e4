"""The ledger while the tables are moved between the sources: real writers, relays and consumers, killed at random, and
so is the move. Every relay, however often it is restarted, has the settings from before the first move."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.test_ledger import on_embedded, on_kafka
from tests.support.ledger.app import connect, execute
from tests.support.ledger.child import Child
from tests.support.ledger.run import LedgerRun, Plan
from tests.support.matrix.wire import read
from tests.support.private_postgres import PrivatePostgres
from tests.support.waiting import eventually_sync
from tests.support.wal import wal_database, wal_server  # noqa: F401 - a fixture

KILLED = ("source.prepared=kill:1", "source.closed=kill:1", "source.switching=kill:1", "source.switched=kill:1")

MOVE_S = 180.0
"""How long a move that was killed may be begun anew until it ends."""


class Mover:
    """Moves to each of ``targets`` in turn, again and again, in a thread: each move is killed at one point and then run
    to its end. The block ends when every target had its turn, unless an error ends it."""

    def __init__(self, run: LedgerRun, folder: Path, targets: tuple[str, ...]) -> None:
        self.run = run
        self.folder = folder
        self.targets = targets
        self.moves: list[str] = []
        self.killed = 0
        self.failure: BaseException | None = None
        self._enough = threading.Event()
        self._failed = threading.Event()
        self._thread = threading.Thread(target=self._guarded)

    def __enter__(self) -> Mover:
        self._thread.start()
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if error_type is not None:
            self._failed.set()
        self._enough.set()
        self._thread.join()

    def _guarded(self) -> None:
        try:
            self._move()
        except BaseException as error:  # raised in the main thread
            self.failure = error

    def _move(self) -> None:
        eventually_sync(lambda: self._written() > 100, what="events are written", timeout_s=60)
        while not self._enough.is_set() or len(self.moves) < len(self.targets):
            target = self.targets[len(self.moves) % len(self.targets)]
            probe = KILLED[len(self.moves) % len(KILLED)]
            code = self._once(target, probe)
            self.killed += code != 0
            deadline = time.monotonic() + MOVE_S
            while code != 0 and not self._failed.is_set():
                assert time.monotonic() < deadline, f"the move to {target} does not end"
                code = self._once(target, "")
            if self._failed.is_set():
                return
            self.moves.append(target)

    def _once(self, target: str, probe: str) -> int:
        config = str(self.folder / "relevo.toml")
        command = [sys.executable, "-m", "relevo", "--config", config, "source", "move", target, "--yes"]
        child = Child("mover", command, self.folder / "mover.log", self.run.plan.topic)
        child.start(**({"RELEVO_PROBE": probe} if probe else {}))
        assert child.process is not None
        return child.process.wait(120)

    def _written(self) -> int:
        connection = connect(self.run.plan.database)
        try:
            return int(execute(connection, "select count(*) from ledger_change")[0][0])
        finally:
            connection.close()


def play(
    plan: Plan, folder: Path, capsys: pytest.CaptureFixture[str], targets: tuple[str, ...] = ("log", "mark")
) -> None:
    with LedgerRun(plan, folder) as run:
        with Mover(run, folder, targets) as mover:
            account = run.play()
        log = (folder / "mover.log").read_text("utf-8", "replace")
        assert mover.failure is None, f"{mover.failure}\n{log}"
        found = read(plan.broker, {}, plan.topic, account.committed, patience_s=60)
        repeats = len(found) - len({message.event_id for message in found})
        with capsys.disabled():
            print(
                f"\n{run.report(account)}; moved {len(mover.moves)} times, {mover.killed} moves killed, "
                f"{repeats} repeats"
            )
        assert account.holds, "\n".join([str(account), log[-3000:], *run.tails()])
        assert len(mover.moves) >= len(targets) and mover.killed >= 1
        assert repeats <= sum(run.kills.values()) * 2 * 200, "a kill repeats what was in flight, a move nothing"


@pytest.fixture
def wal_url(wal_server: PrivatePostgres) -> Iterator[str]:  # noqa: F811
    with wal_database(wal_server) as url:
        yield url


@pytest.mark.xdist_group("wal")
def test_moves_by_way_of_wal(wal_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """HARD 8, FAILURES rows 1, 2, 3, 14: from mark to log, to wal and back to mark, short form on PostgreSQL and the
    embedded broker: 2 writers with rollbacks and late commits, 2 relays, 1 consumer, 4 kills, each move killed once."""
    plan = Plan(
        *(wal_url, f"embedded:{tmp_path / 'broker.db'}", "lease_s = 2"),
        writers=2,
        consumers=1,
        transactions=1000,
        kills=4,
        kill_every_s=4.0,
    )
    play(plan, tmp_path, capsys, ("log", "wal", "mark"))


@pytest.mark.soak
def test_moves_on_sqlite_and_the_embedded_broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """HARD 8, FAILURES rows 1, 3, 14: there and back under load, moves and processes killed at random."""
    play(on_embedded(tmp_path, writers=2, transactions=3000, kills=4, kill_every_s=6.0), tmp_path, capsys)


@pytest.mark.soak
@pytest.mark.xdist_group("heavy")
@pytest.mark.parametrize("kills", [0, 6])
def test_moves_on_postgres_and_kafka(
    kills: int, pg_database: str, kafka_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """HARD 8, FAILURES rows 1, 2, 3, 11, 14: 4 writers with rollbacks and late commits, 2 relays, 2 consumers. Without
    kills of relays nothing at all may be on the wire twice."""
    plan = on_kafka(pg_database, kafka_url, transactions=2000, kills=kills, kill_every_s=5.0)
    play(plan, tmp_path, capsys)
