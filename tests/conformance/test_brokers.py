"""Our brokers, through the suite that every broker passes."""

from __future__ import annotations

import asyncio
import functools
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from relevo.brokers import broker_for
from tests.support.ports import worker
from tests.support.private_kafka import PrivateKafka, private_kafka
from tests.support.private_rabbitmq import PrivateRabbitMQ, private_rabbitmq
from tests.support.schema import create_schema

pytest.register_assert_rewrite("relevo.testing.broker_conformance", "relevo.testing.broker_processes")

from relevo.testing.broker_conformance import BrokerConformance  # noqa: E402


@pytest.fixture(scope="module")
def own_kafka(kafka_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateKafka]:
    """Beside ``kafka_url``, so that it is skipped (or fails) where there is no Kafka at all."""
    with private_kafka(tmp_path_factory.mktemp("kafka"), 25_000 + 100 * worker()) as kafka:
        yield kafka


@pytest.fixture(scope="module")
def own_rabbitmq(rabbitmq_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateRabbitMQ]:
    """Beside ``rabbitmq_url``, as above."""
    with private_rabbitmq(tmp_path_factory.mktemp("rabbitmq"), 26_000 + 100 * worker()) as rabbitmq:
        yield rabbitmq


class TestEmbedded(BrokerConformance):
    @pytest.fixture
    def make_broker(self, tmp_path: Path) -> Any:
        options = {"lease_s": 6.0, "auto_create": False, "busy_timeout_s": 1.0}
        return functools.partial(broker_for, f"embedded:{tmp_path}/broker.db", options)

    @pytest.fixture
    def outage(self, make_broker: Any, tmp_path: Path) -> Any:
        return StuckWriter(make_broker, tmp_path / "broker.db")


class StuckWriter:
    """Another program holds the file's write lock."""

    def __init__(self, make_broker: Any, path: Path) -> None:
        self.make_broker = make_broker
        self._path = path

    async def begin(self) -> None:
        self._connection = sqlite3.connect(self._path, isolation_level=None)
        self._connection.execute("begin immediate")

    async def end(self) -> None:
        self._connection.close()


class TestKafka(BrokerConformance):
    @pytest.fixture
    def make_broker(self, kafka_url: str) -> Any:
        return functools.partial(broker_for, kafka_url, {"session.timeout.ms": 6000})

    @pytest.fixture(params=["frozen", "killed"])
    def outage(self, own_kafka: PrivateKafka, request: pytest.FixtureRequest) -> Any:
        return Frozen(own_kafka) if request.param == "frozen" else Killed(own_kafka)


@pytest.mark.soak
class TestKafkaInABacklog(TestKafka):
    """All of it again with the producer that waits for company, which takes over only where thousands are under way."""

    @pytest.fixture(autouse=True)
    def patient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("relevo.brokers.kafka.producers.BACKLOG", 0)


class TestRabbitMQ(BrokerConformance):
    @pytest.fixture
    def make_broker(self, each_rabbitmq_url: str) -> Any:
        return functools.partial(broker_for, each_rabbitmq_url, {"member_timeout_s": 2.0})

    @pytest.fixture(params=["frozen", "killed"])
    def outage(self, own_rabbitmq: PrivateRabbitMQ, request: pytest.FixtureRequest) -> Any:
        return Frozen(own_rabbitmq) if request.param == "frozen" else Killed(own_rabbitmq)


class TestPostgres(BrokerConformance):
    @pytest.fixture
    def make_broker(self, pg_database: str) -> Any:
        create_schema(pg_database, source="log")
        return functools.partial(broker_for, pg_database, {"lease_s": 6.0, "auto_create": False})

    @pytest.fixture(params=["locked", "closed"])
    def outage(self, make_broker: Any, pg_database: str, request: pytest.FixtureRequest) -> Any:
        return LockedOutbox(make_broker, pg_database) if request.param == "locked" else Closed(make_broker, pg_database)


class LockedOutbox:
    """Another program holds the outbox's lock, as a migration might."""

    def __init__(self, make_broker: Any, url: str) -> None:
        self.make_broker = make_broker
        self._url = url

    async def begin(self) -> None:
        self._connection = await psycopg.AsyncConnection.connect(self._url)
        await self._connection.execute("lock table relevo_outbox in access exclusive mode")

    async def end(self) -> None:
        await self._connection.close()


class Closed:
    """The server cuts everybody off and lets nobody in."""

    def __init__(self, make_broker: Any, url: str) -> None:
        self.make_broker = make_broker
        parts = urlsplit(url)
        self._name = parts.path.removeprefix("/")
        self._admin = parts._replace(path="/postgres").geturl()

    async def begin(self) -> None:
        await self._allow(False)
        await self._execute(f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{self._name}'")

    async def end(self) -> None:
        await self._allow(True)

    async def _allow(self, allowed: bool) -> None:
        await self._execute(f"alter database {self._name} allow_connections {allowed}")

    async def _execute(self, text: str) -> None:
        async with await psycopg.AsyncConnection.connect(self._admin, autocommit=True) as connection:
            await connection.execute(text.encode())


class Frozen:
    """The server keeps its connections and does not answer."""

    def __init__(self, server: PrivateKafka | PrivateRabbitMQ) -> None:
        self._server = server

    def make_broker(self) -> Any:
        return broker_for(self._server.url)

    async def begin(self) -> None:
        self._server.freeze()

    async def end(self) -> None:
        self._server.thaw()


class Killed(Frozen):
    """The server's process is gone; connections are refused until it is started again."""

    async def begin(self) -> None:
        await asyncio.to_thread(self._server.kill)

    async def end(self) -> None:
        await asyncio.to_thread(self._server.start)
