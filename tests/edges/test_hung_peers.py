"""Peers that hang instead of dying: no answer, no end, no reset.

Right is: noticed within a lease, not ready meanwhile, recovered as soon as the peer (or a new connection to it) works,
nothing lost or doubled; and a stop keeps its bound in every state.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.cli import environment
from tests.support.hanging import HangingProxy, hanging
from tests.support.hung import LEASE_S, NOTICED_S, SLACK_S, STOP_S, scene
from tests.support.private_kafka import private_kafka
from tests.support.relays import postgres_store
from tests.support.waiting import eventually, eventually_sync

LINKS = ("relay database", "consumer database", "relay broker", "consumer broker")
HOWS = ("open ones", "in a reply", "new ones too", "new ones half")
BROKERS = ("embedded", "postgres", "rabbitmq", "kafka")
SHORT = {
    ("kafka", "relay broker", "new ones too", "log"),
    ("kafka", "consumer broker", "open ones", "log"),
    ("embedded", "relay database", "open ones", "log"),
    ("embedded", "consumer database", "in a reply", "log"),
    ("postgres", "consumer broker", "open ones", "log"),
    ("rabbitmq", "relay broker", "new ones too", "log"),
    ("rabbitmq", "consumer broker", "open ones", "log"),
}


def _matrix() -> Sequence[object]:
    rows = []
    for broker in BROKERS:
        for link in LINKS:
            if broker == "embedded" and link.endswith("broker"):
                continue  # a file
            if broker == "kafka" and link.endswith("database"):
                continue  # as with the others
            if broker == "postgres" and link == "relay broker":
                continue  # not used: the outbox is the broker, and the relay hands nothing over
            for how in HOWS:
                for source in ("log", "mark") if link == "relay database" and broker == "embedded" else ("log",):
                    row = (broker, link, how, source)
                    marks = [] if row in SHORT else [pytest.mark.soak]
                    marks += [pytest.mark.xdist_group("hung-kafka")] if broker == "kafka" else []
                    rows.append(pytest.param(*row, marks=marks))
    return rows


@pytest.fixture(scope="module")
def proxied_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], tuple[str, HangingProxy]]]:
    """Starts a Kafka that sends its clients through a proxy, once, when it is first asked for: a URL and the proxy."""
    with contextlib.ExitStack() as stack:
        made: list[tuple[str, HangingProxy]] = []

        def make() -> tuple[str, HangingProxy]:
            if not made:
                proxy = HangingProxy(("127.0.0.1", 0))
                stack.callback(proxy.close)
                base_port = 26_000 + int.from_bytes(secrets.token_bytes(1), "big") * 10
                kafka = stack.enter_context(private_kafka(tmp_path_factory.mktemp("kafka"), base_port, proxy.port))
                proxy.target = kafka.proxied
                made.append((kafka.url, proxy))
            made[0][1].reset()
            return made[0]

        yield make


@pytest.mark.parametrize(("broker", "link", "how", "source"), _matrix())
async def test_a_connection_that_hangs(
    pg_database: str,
    rabbitmq_url: str,
    proxied_kafka: Callable[[], tuple[str, HangingProxy]],
    tmp_path: Path,
    *,
    broker: str,
    link: str,
    how: str,
    source: str,
) -> None:
    where, through = rabbitmq_url if broker == "rabbitmq" else broker, None
    if broker == "kafka":
        where, through = await asyncio.to_thread(proxied_kafka)
    async with scene(pg_database, tmp_path, broker=where, link=link, source=source, through=through) as stage:
        stage.add(20)
        await stage.handled("before")
        proxy = stage.proxies[link]
        if how == "in a reply":
            proxy.hang_in(11)
        else:
            proxy.new = {"new ones too": "silent", "new ones half": "half"}.get(how, "work")  # type: ignore[assignment]
            assert proxy.hang()
        stage.add(20)
        if how.startswith("new ones"):
            patience_s = NOTICED_S if broker != "rabbitmq" else NOTICED_S + 3 * 10  # its heartbeat
            await eventually(stage.look, what="it is not ready", timeout_s=patience_s, every_s=0.05)
            proxy.new = "work"
        await stage.handled("after")
        await stage.even()
        await eventually(lambda: stage.ready, what="it is ready again", timeout_s=60)
        assert proxy.hung, "nothing was made to hang"


ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ("relay", "consume", "effects")
STATES = ("start", "silent", "work")
"""All connections hang from the start; while it runs, new ones too; while it runs, and new ones work."""


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("command", COMMANDS)
def test_sigterm_keeps_its_bound(pg_database: str, tmp_path: Path, command: str, state: str) -> None:
    """Of the real process: exit code 0 within ``stop_timeout_s``, whatever its database does."""
    store = postgres_store(pg_database)
    with hanging(store.url) as proxy:
        (tmp_path / "relevo.toml").write_text(
            f'[database]\nurl = "{proxy.through(store.url)}"\n[broker]\nurl = "embedded:{tmp_path}/broker.db"\n'
            "[broker.options]\nauto_create = true\n"
            f"[relay]\nlease_s = {LEASE_S}\nsend_timeout_s = 1\nstop_timeout_s = {STOP_S}\n"
            f"[consumer]\nlease_s = {LEASE_S}\nstop_timeout_s = {STOP_S}\n"
        )
        (tmp_path / "hungshop.py").write_text(
            "from relevo import Consumer, Event, effect\nfrom tests.support.events import OrderPlaced\n\n"
            "billing = Consumer('billing', ['shop.order'])\n\n"
            "@billing.on(OrderPlaced)\ndef handle(event: Event[OrderPlaced]) -> None: ...\n\n"
            "@effect('shop.mail', timeout_s=2)\ndef mail(request) -> None: ...\n"
        )
        arguments = {"relay": ["relay"], "consume": ["consume", "hungshop:billing"]}.get(
            command, ["effects", "run", "hungshop:mail"]
        )
        if state == "start":
            proxy.new = "silent"
        log = tmp_path / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "relevo", *arguments],
                cwd=tmp_path, env=environment({"PYTHONPATH": str(ROOT)}), stdout=out, stderr=out,
            )  # fmt: skip
        try:
            if state == "start":
                eventually_sync(lambda: proxy.accepted or process.poll() is not None, what="it connects")
            else:
                eventually_sync(lambda: "ready" in log.read_text() or process.poll() is not None, what="it is ready")
                proxy.new = "silent" if state == "silent" else "work"
                proxy.hang()
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(STOP_S + 30) == 0, log.read_text()
            took_s = time.monotonic() - began
            assert took_s < (SLACK_S if state == "start" else STOP_S + SLACK_S), (took_s, log.read_text())
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


POOLS = {
    "engine": "sqlalchemy.create_engine(URL.replace(':', '+psycopg:', 1))",
    "async engine": "sqlalchemy.ext.asyncio.create_async_engine(URL.replace(':', '+psycopg:', 1))",
    "async engine on asyncpg": "sqlalchemy.ext.asyncio.create_async_engine(URL.replace(':', '+asyncpg:', 1))",
    "psycopg": "lambda: psycopg.connect(URL)",
    "async psycopg": "lambda: psycopg.AsyncConnection.connect(URL)",
    "asyncpg": "lambda: asyncpg.connect(URL)",
}
ANNOTATIONS = {
    "engine": "sqlalchemy.Connection",
    "async engine": "sqlalchemy.ext.asyncio.AsyncConnection",
    "async engine on asyncpg": "sqlalchemy.ext.asyncio.AsyncConnection",
    "psycopg": "psycopg.Connection",
    "async psycopg": "psycopg.AsyncConnection",
    "asyncpg": "asyncpg.Connection",
}
HANGS_AT = {"connect": None, "statement": b"created_at"}
"""``statement``: the one by which the consumer tells the database."""


def _starts() -> Sequence[object]:
    short = {("engine", "connect"), ("psycopg", "statement")}
    rows = [(pool, at) for pool in POOLS for at in HANGS_AT]
    return [pytest.param(*row, marks=() if row in short else pytest.mark.soak) for row in rows]


@pytest.mark.parametrize(("pool", "at"), _starts())
def test_sigterm_while_the_applications_pool_is_asked_at_the_start(
    pg_database: str, tmp_path: Path, pool: str, at: str
) -> None:
    """Only the application's own connections hang; the consumer leaves at once, with exit code 0."""
    store = postgres_store(pg_database)
    with hanging(store.url) as proxy:
        (tmp_path / "relevo.toml").write_text(
            f'[database]\nurl = "{store.url}"\n[broker]\nurl = "embedded:{tmp_path}/broker.db"\n'
            f"[broker.options]\nauto_create = true\n[consumer]\nstop_timeout_s = {STOP_S}\n"
        )
        define = "async def" if pool.startswith("async") else "def"
        (tmp_path / "hungshop.py").write_text(
            "import asyncpg, psycopg, sqlalchemy.ext.asyncio\n"
            "from relevo import Consumer, Event\nfrom tests.support.events import OrderPlaced\n\n"
            f"URL = {proxy.through(store.url)!r}\nbilling = Consumer('billing', ['shop.order'], tx={POOLS[pool]})\n\n"
            f"@billing.on(OrderPlaced)\n{define} handle(event: Event[OrderPlaced], tx: {ANNOTATIONS[pool]}): ...\n"
        )
        proxy.hang_before = HANGS_AT[at]
        proxy.new = "silent" if at == "connect" else "work"
        log = tmp_path / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "relevo", "consume", "hungshop:billing"],
                cwd=tmp_path, env=environment({"PYTHONPATH": str(ROOT)}), stdout=out, stderr=out,
            )  # fmt: skip
        try:
            eventually_sync(lambda: proxy.hung > 0 or process.poll() is not None, what="it asks", timeout_s=60)
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(STOP_S + 30) == 0, log.read_text()
            assert time.monotonic() - began < SLACK_S, log.read_text()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


async def test_a_peer_that_dies_while_the_process_is_frozen(pg_database: str, tmp_path: Path) -> None:
    """The loop stands still meanwhile, as after SIGSTOP; afterwards all goes on by itself."""
    async with scene(pg_database, tmp_path, broker="embedded", link="relay database") as stage:
        stage.add(10)
        await stage.handled("before")
        stage.proxies["relay database"].hang()
        stage.add(10)
        time.sleep(1.5 * LEASE_S)
        await asyncio.sleep(0)
        await stage.even()
