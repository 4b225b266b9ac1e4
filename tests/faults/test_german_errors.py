"""A PostgreSQL that speaks German: what an error means does not hang on its words."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from relevo import Backoff, Consumer, Event
from tests.support.consumers import FAST, effects, held, insert, make_effects, order, running, settled
from tests.support.events import OrderPlaced
from tests.support.fake_subscription import FakeBroker
from tests.support.private_postgres import private_postgres
from tests.support.relays import Store, postgres_store

GERMAN = "de_DE.UTF-8"


@pytest.fixture
def german(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A server of the test's own, with the locale compiled into a folder of its own."""
    if shutil.which("localedef") is None:
        pytest.skip("there is no localedef to compile the locale de_DE with")
    locales = tmp_path / "locales"
    locales.mkdir()
    made = subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", str(locales / GERMAN)], capture_output=True)
    if made.returncode:
        pytest.skip("the source of the locale de_DE is not installed")
    for folder in (locales, locales / GERMAN):
        folder.chmod(0o755)
    monkeypatch.setenv("LOCPATH", str(locales))
    with private_postgres(tmp_path / "postgres", lc_messages=GERMAN) as server:
        with psycopg.connect(server.url) as connection:
            with pytest.raises(psycopg.errors.DivisionByZero) as told:
                connection.execute("select 1 / 0")
        if "Division durch Null" not in str(told.value):
            pytest.skip("this PostgreSQL has no German messages")
        store = postgres_store(server.url)
        make_effects(store)
        yield store


async def test_errors_in_german_mean_the_same(german: Store) -> None:
    """FAILURES row 34. A serialization failure, a deadlock and a session the server ended cost no attempt (there is one
    only); a division by zero and a missing table in the handler are the message's failure and park it, with the German
    text for people."""
    broker = FakeBroker()
    consumer = Consumer("billing", ["shop.order"], retry=Backoff(attempts=1, base=FAST.base, cap=FAST.cap))
    first: set[int] = set()

    def once(number: int) -> bool:
        if number in first:
            return False
        first.add(number)
        return True

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: psycopg.Connection[Any]) -> None:
        number = event.data.order_id
        insert(tx, number)
        match number:
            case 1 if once(1):
                tx.execute("do $$ begin raise exception 'Konflikt' using errcode = 'serialization_failure'; end $$")
            case 2 if once(2):
                tx.execute("do $$ begin raise exception 'Verklemmung' using errcode = 'deadlock_detected'; end $$")
            case 3 if once(3):
                with psycopg.connect(german.url, autocommit=True) as other:
                    other.execute("select pg_terminate_backend(%s)", (tx.info.backend_pid,))
                tx.execute("select 1")
            case 4:
                tx.execute("select 1 / 0")
            case 5:
                tx.execute("select * from gibt_es_nicht")

    broker.append(*(order(number, f"k{number}") for number in range(1, 7)))
    async with running(consumer, german, broker):
        await settled(broker)
    assert sorted(effects(german)) == [1, 2, 3, 6]
    assert first == {1, 2, 3}
    reasons = {row[2].split()[0]: row[1] for row in held(german) if row[2]}
    assert {row[0] for row in held(german)} == {"parked"} and len(held(german)) == 2
    assert any("Division durch Null" in reason for reason in reasons.values())
    assert any("existiert nicht" in reason for reason in reasons.values())
