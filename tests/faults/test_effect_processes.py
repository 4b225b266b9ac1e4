"""Performers in processes of their own, killed and frozen for real at each point of an effect."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.cli import environment
from tests.support.effects import attempts, record, states
from tests.support.relays import Store, postgres_store, sqlite_store
from tests.support.waiting import FROZEN_ON_SQLITE, eventually_sync

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "sqlite":
        return sqlite_store(tmp_path / "app.db")
    return postgres_store(request.getfixturevalue("pg_database"))


class Provider:
    """What the acts left behind, and processes that perform them."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store = store
        self.file = folder / "provider.txt"
        self.log = folder / "performer.log"

    def booked(self) -> list[str]:
        return [line.split()[1] for line in self.file.read_text().splitlines()] if self.file.exists() else []

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    @contextmanager
    def performer(self, probe: str = "") -> Iterator[subprocess.Popen[bytes]]:
        env = {
            "RELEVO_DATABASE_URL": self.store.url,
            "RELEVO_EFFECTS_GRACE_S": "0.6",
            "RELEVO_EFFECTS_POLL_S": "0.05",
            "TEST_PROVIDER": str(self.file),
            **({"RELEVO_PROBE": probe} if probe else {}),
        }
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [Path(sys.executable).with_name("relevo"), "effects", "run", "tests.support.acting:charge"],
                cwd=REPO,
                env=environment(env),
                stderr=log,
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def provider(store: Store, tmp_path: Path) -> Provider:
    return Provider(store, tmp_path)


@pytest.mark.parametrize("point", ["effect.claimed", "effect.sent", "effect.acted", "effect.recorded"])
def test_killed_at_every_point_the_card_is_charged_once(provider: Provider, point: str) -> None:
    """SIGKILL before, at and after the act. The next process finds the effect, asks ``verify`` if it has to, and the
    provider has one charge. Without ``verify`` the bell rings at most once, and its state says what is known."""
    store = provider.store
    record(store, "charge-card", "o-1")
    with provider.performer(f"{point}=kill:1") as process:
        assert process.wait(20) == -signal.SIGKILL
    assert f"probe {point}" in provider.said()
    with provider.performer():
        eventually_sync(lambda: states(store) == {"o-1": "done"}, what="the effect is done")
    assert provider.booked() == ["o-1"]
    assert attempts(store)["o-1"] == (2 if point == "effect.sent" else 1)

    record(store, "ring-bell", "b-1")
    with provider.performer(f"{point}=kill:1") as process:
        assert process.wait(20) == -signal.SIGKILL
    known = {"effect.claimed": "done", "effect.recorded": "done"}.get(point, "unknown")
    with provider.performer():
        eventually_sync(lambda: states(store)["b-1"] == known, what=f"the bell is {known}")
        record(store, "charge-card", "o-2")  # when this one is done, the runner has looked at everything
        eventually_sync(lambda: states(store)["o-2"] == "done", what="another effect is done")
    assert states(store)["b-1"] == known
    assert provider.booked().count("b-1") == (0 if point == "effect.sent" else 1)


@pytest.mark.parametrize("point", ["effect.sent", "effect.acted"])
def test_frozen_beyond_its_lease_it_does_not_act_twice(provider: Provider, point: str) -> None:
    """SIGSTOP just before or just after the act. Another process takes over when the lease is over; then the frozen one
    wakes up, and neither acts nor changes what is recorded."""
    store = provider.store
    if not store.is_postgres:
        pytest.skip(FROZEN_ON_SQLITE)
    record(store, "charge-card", "o-1")
    with provider.performer(f"{point}=freeze:1") as frozen:
        eventually_sync(lambda: f"probe {point}: SIGSTOP" in provider.said(), what="it is frozen")
        with provider.performer():
            eventually_sync(lambda: states(store) == {"o-1": "done"}, what="another process took over")
            assert provider.booked() == ["o-1"]
        os.kill(frozen.pid, signal.SIGCONT)
        record(store, "charge-card", "o-2")  # performed by the one that woke up: it has looked at o-1 by then
        eventually_sync(lambda: states(store)["o-2"] == "done", what="the woken process goes on")
        frozen.terminate()
        assert frozen.wait(20) == 0
    assert sorted(provider.booked()) == ["o-1", "o-2"]
    if point == "effect.sent":
        assert "stood still until its lease was over" in provider.said()


def test_asked_to_leave_it_finishes_the_act(provider: Provider) -> None:
    """SIGTERM: what was begun is finished and recorded; exit code 0."""
    record(provider.store, "charge-card", "o-1")
    with provider.performer() as process:
        eventually_sync(lambda: states(provider.store) == {"o-1": "done"}, what="done")
        process.terminate()
        assert process.wait(20) == 0
