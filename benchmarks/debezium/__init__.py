"""Debezium's outbox router in Kafka Connect (standalone), set up in its favour: what our figures are held against.

Tuned, not as it comes: idempotent producer with five requests in flight, large batches and queues, parallel GC with a
fixed heap, plain-string converters, polling every 10 ms. Its jars come from Maven into the benchmark servers' folder.
"""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

import psycopg

from benchmarks import contestant
from benchmarks.contestant import Contestant, Unavailable, call
from benchmarks.scratch import name_of

SLOT = "debezium"
VERSION = "3.6.1.Final"
JVM = ["-Xms1g", "-Xmx1g", "-XX:+UseParallelGC", "-Djava.awt.headless=true"]

TABLE = """
create table outbox (
  id uuid primary key default gen_random_uuid(), aggregatetype text not null, aggregateid text not null,
  type text not null, payload jsonb not null);
create publication debezium for table outbox with (publish = 'insert');
"""

_CONNECTOR = """\
name=outbox
connector.class=io.debezium.connector.postgresql.PostgresConnector
tasks.max=1
database.hostname={host}
database.port={port}
database.user={user}
database.password={password}
database.dbname={database}
topic.prefix={name}
plugin.name=pgoutput
slot.name={slot}
publication.name=debezium
publication.autocreate.mode=disabled
table.include.list=public.outbox
snapshot.mode=no_data
tombstones.on.delete=false
max.batch.size=8192
max.queue.size=32768
poll.interval.ms={poll_ms}
transforms=outbox
transforms.outbox.type=io.debezium.transforms.outbox.EventRouter
transforms.outbox.route.topic.replacement={name}.${{routedByValue}}
transforms.outbox.table.fields.additional.placement=type:header:eventType
extended.headers.enabled=false
"""

_WORKER = """\
bootstrap.servers={bootstrap}
listeners=HTTP://127.0.0.1:{rest_port}
plugin.discovery=service_load
offset.storage.file.filename={folder}/offsets
offset.flush.interval.ms=5000
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
producer.acks=all
producer.enable.idempotence=true
producer.max.in.flight.requests.per.connection=5
producer.linger.ms={linger_ms}
producer.batch.size=262144
producer.buffer.memory=67108864
"""

_LOGGING = """\
rootLogger.level = WARN
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p %c{1} %m%n
"""


class Debezium(Contestant):
    insert: ClassVar[str] = (
        "insert into outbox (aggregatetype, aggregateid, type, payload) values ({subject}, {key}, 'x', {body}::jsonb)"
    )
    table: ClassVar[str] = "outbox"
    settings: ClassVar[str] = (
        f"Debezium {VERSION} in Kafka Connect, outbox event router, acks=all, idempotent, 5 requests in flight, 1 GiB "
        "heap, parallel GC, max.batch.size 8192, poll and linger 10 ms (5 and 0 for latency)"
    )

    def ready(self) -> None:
        if shutil.which("java") is None:
            raise Unavailable("starting Debezium: there is no java on this machine")
        self._jars()

    def prepare(self, url: str) -> None:
        """Its table, publication and slot: before the events are written, since it reads the log from the slot on."""
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(TABLE)
            slot = f"{SLOT}_{name_of(url)}"
            connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))

    def command(
        self, url: str, bootstrap: str, prefix: str, events: int, folder: Path, *, quick: bool = False
    ) -> list[str]:
        """Kafka Connect with the connector."""
        parts = urlsplit(url)
        values = {
            "host": parts.hostname,
            "port": parts.port or 5432,
            "user": parts.username or "postgres",
            "password": parts.password or "",
            "database": name_of(url),
            "slot": f"{SLOT}_{name_of(url)}",
            "name": prefix,
            "bootstrap": bootstrap,
            "folder": folder,
            "rest_port": _free_port(),
            "linger_ms": 0 if quick else 10,
            "poll_ms": 5 if quick else 10,
        }
        (folder / "connector.properties").write_text(_CONNECTOR.format(**values))
        (folder / "worker.properties").write_text(_WORKER.format(**values))
        (folder / "log4j2.properties").write_text(_LOGGING)
        return [
            *("java", *JVM, f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}", "-cp", f"{self._jars()}/*"),
            *("org.apache.kafka.connect.cli.ConnectStandalone", str(folder / "worker.properties")),
            str(folder / "connector.properties"),
        ]

    def _jars(self) -> Path:
        """The folder with its jars; fetched with Maven when they are not there."""
        folder = contestant.folder("debezium") / "libs"
        complete = folder / ".done"
        if not complete.exists():
            print(f"fetching Debezium {VERSION} with Maven (about 100 MB)", flush=True)
            goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
            pom = Path(__file__).with_name("pom.xml")
            call(["mvn", "-B", "-q", "-f", pom, *goal], "fetching Debezium")
            complete.touch()
        return folder


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
