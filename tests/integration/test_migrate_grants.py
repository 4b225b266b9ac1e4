"""Least privilege, proved with real roles on PostgreSQL: each can run its duty's statements, and nothing else."""

from __future__ import annotations

import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from relevo import catalog as catalog_module
from relevo.brokers import broker_for
from relevo.catalog import Catalog, numbered
from relevo.clients import database_for
from relevo.errors import ConfigError, SchemaError, UsageError
from relevo.ops import grants
from relevo.ops.migrate import catalog_of, migrate
from relevo.ops.status import status
from relevo.outbox import Outbox
from relevo.relay.service import Relay
from relevo.settings import Settings, load
from relevo.storage.ready import ensure_ready
from tests.support.events import OrderPlaced
from tests.support.waiting import eventually

STATEMENTS = {
    "writer": ("append.", "scheduled.add", "scheduled.cancel", "scheduled.find", "effect.record"),
    "relay": (
        *("groups.topics_known", "groups.append_nothing"),
        *("meta.read", "lanes.", "relays.", "mark.", "destinations.", "relay_held.", "held.", "process."),
        *("pause.all", "duty.", "scheduled.move", "scheduled.next_due"),
        *(
            "log.load",
            "log.begin_lanes",
            "log.window",
            "log.pin",
            "log.page",
            "log.look",
            "log.here",
            "log.save",
            "log.add",
            "log.drop",
        ),
    ),
    "keeper": ("purge.", "duty.", "journal.purge", "process.forget_dead", "audit.add"),
    "consumer": (
        "meta.read",
        "pause.all",
        "inbox.",
        "journal.",
        "held.",
        "process.",
        "effect.",
        "performing.",
        "replay_keys.",
        "letters.",
        "duty.",
    ),
    "reader": (
        *("meta.read", "meta.moved", "lanes.count", "log.window", "log.pin", "groups.topics_known", "groups.exists"),
        *("groups.create", "groups.join", "groups.bury", "groups.living", "groups.renew", "groups.acquire"),
        *("groups.release", "groups.leave", "groups.save", "groups.page", "groups.lag", "groups.history"),
    ),
    "operator": (
        *("groups.listed", "groups.behind", "groups.drop", "groups.create_topics"),
        "meta.read",
        "meta.applied",
        "status.",
        "log.pending",
        "process.live",
        "parked.",
        "audit.",
        "job.",
        "pause.",
        "effects.",
        "replay.",
        "replay_keys.l",
        "duty.",
        "letters.by_consumer",
    ),
}
"""Names of the statements that a duty runs, by how they begin."""

OTHERS = {"reader": ("groups.create_topics",)}
"""Statements of other duties whose names begin like one of this duty's."""

DENIED = {
    "writer": [
        "select payload from {outbox}",
        "select * from {outbox_readable}",
        "update {outbox} set outcome = 'published'",
        "delete from {outbox}",
        "truncate {outbox}",
        "insert into {outbox} (event_id, bucket, topic, type, settled_at) "
        "values (gen_random_uuid(), 1, 'shop', 'shop.sold', now())",
        "insert into {outbox_p0} (seq, event_id, bucket, topic, type) values (1, gen_random_uuid(), 1, 'a', 'a.b')",
        "select * from {meta}",
        "update {lane} set epoch = 0",
        "insert into {inbox} (consumer, event_id) values ('a', gen_random_uuid())",
        "select * from {held_message}",
    ],
    "relay": [
        "insert into {outbox} (event_id, bucket, topic, type, settled_at) "
        "values (gen_random_uuid(), 1, 'shop', 'shop.sold', now())",
        "update {outbox} set payload = ''",
        "delete from {outbox}",
        "delete from {lane}",
        "select * from {inbox}",
        "select * from {journal}",
        "update {meta} set source = 'log'",
        "delete from {archive}",
        "insert into {pause} (kind, name, who, why) values ('topic', 'a', 'b', 'c')",
    ],
    "keeper": [
        "insert into {outbox} (event_id, bucket, topic, type) values (gen_random_uuid(), 1, 'shop', 'shop.sold')",
        "update {outbox} set settled_at = now()",
        "delete from {held_message}",
        "delete from {archive}",
        "delete from {keep}",
        "insert into {inbox} (consumer, event_id) values ('a', gen_random_uuid())",
    ],
    "consumer": [
        "select * from {outbox}",
        "update {outbox} set outcome = 'published'",
        "select {add}('shop', 'shop.sold', '{}')",
        "select * from {lane}",
        "delete from {destination}",
        "update {meta} set source = 'log'",
    ],
    "reader": [
        "insert into {outbox} (event_id, bucket, topic, type) values (gen_random_uuid(), 1, 'shop', 'shop.sold')",
        "update {outbox} set outcome = 'published'",
        "delete from {outbox}",
        "update {lane} set epoch = 0",
        "delete from {group}",
        "delete from {group_lane}",
        "select * from {cursor}",
        "select * from {inbox}",
    ],
    "operator": [
        "insert into {outbox} (event_id, bucket, topic, type) values (gen_random_uuid(), 1, 'shop', 'shop.sold')",
        "update {outbox} set outcome = 'published'",
        "delete from {outbox}",
        "delete from {inbox}",
        "update {lane} set epoch = 0",
        "insert into {held_key} (side, topic, key, bucket, state, reason) values ('relay', 'a', '', 1, 'parked', 'x')",
        "create table {more} (a integer)",
    ],
}


@dataclass(frozen=True)
class Installation:
    """One database with the tables in a schema of their own; ``settings`` by duty, each with its own login role."""

    catalog: Catalog
    settings: dict[str, Settings]

    def connect(self, duty: str) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(self.settings[duty].database.url)


@pytest.fixture
def installation(pg_database: str, tmp_path: Path) -> Iterator[Installation]:
    """Roles and tables, and the grants as `relevo migrate --grant … --sql` prints them, run by psql."""
    psql = shutil.which("psql")
    if psql is None:
        pytest.skip("psql is not installed")
    suffix = secrets.token_hex(6)
    roles = {duty: f"relevo-{duty}-{suffix}" for duty in grants.DUTIES}
    owner = _settings(pg_database)
    migrate(owner)
    with psycopg.connect(pg_database) as connection:
        connection.execute("".join(f'create role "{role}" login;' for role in roles.values()).encode())
    try:
        script = tmp_path / "grants.sql"
        script.write_text(grants.sql(owner, grants.parse(f"{duty}:{role}" for duty, role in roles.items())))
        subprocess.run([psql, pg_database, "-v", "ON_ERROR_STOP=1", "-qf", script], check=True)
        urls = {duty: pg_database.replace("//relevo@", f"//{role}@") for duty, role in roles.items()}
        yield Installation(catalog_of(owner), {duty: _settings(url) for duty, url in urls.items()})
    finally:
        with psycopg.connect(pg_database) as connection:
            for role in roles.values():
                connection.execute(f'drop owned by "{role}"; drop role "{role}"'.encode())


@pytest.mark.parametrize("duty", grants.DUTIES)
def test_a_duty_runs_all_its_statements_and_no_others(installation: Installation, duty: str) -> None:
    """Every statement of the duty's engines is planned by its role, which checks the rights as running it does; what is
    not its duty is refused with SQLSTATE 42501."""
    catalog = installation.catalog
    with installation.connect(duty) as connection:
        others = OTHERS.get(duty, ())
        names = [
            name
            for name in catalog_module._statements("postgresql")
            if name.startswith(STATEMENTS[duty]) and name not in others
        ]
        assert len(names) >= 3
        for name in names:
            text, parameters = numbered(catalog.text(name))
            if re.search(r"^copy ", text, re.MULTILINE):  # cannot be prepared; an empty one asks for the same rights
                with connection.cursor().copy(text.encode()):
                    continue
            nulls = f"({', '.join(['null'] * len(parameters))})" if parameters else ""
            connection.execute(f"prepare statement as {text}".encode())
            connection.execute(f"explain execute statement{nulls}".encode())
            connection.execute("deallocate statement")
    for statement in DENIED[duty]:
        with installation.connect(duty) as connection:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(catalog.fill(statement).encode())


async def test_the_duties_do_their_work_with_their_own_roles(installation: Installation, tmp_path: Path) -> None:
    """An application appends both ways, a relay hands over, an operator sees it; all through real connections."""
    outbox = Outbox(schema="shop")
    with installation.connect("writer") as connection:
        event_id = outbox.add(connection, OrderPlaced(1))
        connection.execute(installation.catalog.fill("select {add}('shop', 'shop.sold', '{\"id\": 1}', '1')").encode())
        assert outbox.find(connection, event_id)

    settings = installation.settings["relay"]
    settings.broker.url = f"embedded:{tmp_path / 'broker.db'}"
    await broker_for(settings.broker.url).ensure_topics(["shop.order", "shop"])
    database = database_for(installation.settings["operator"].database)
    try:
        assert (await status(database, installation.settings["operator"])).pending.count == 2
        async with Relay(settings) as relay:
            await eventually(lambda: relay.engine and relay.engine.counters.published == 2, what="both are published")
            report = await status(database, installation.settings["operator"])
        assert len(report.relays) == 1
        assert (await status(database, installation.settings["operator"])).pending.count == 0
    finally:
        await database.aclose()


async def test_a_missing_right_is_told_with_the_command_that_prints_the_grants(installation: Installation) -> None:
    """The writer's role given to a relay: refused at the start, in plain words."""
    settings = installation.settings["writer"]
    database = database_for(settings.database)
    try:
        with pytest.raises(SchemaError, match=r"no permission.*relevo migrate --grant"):
            await ensure_ready(database, settings)
    finally:
        await database.aclose()


def test_apply_does_what_the_printed_statements_do(pg_database: str) -> None:
    """`--grant` without `--sql`; any role name is quoted; an unknown role is an error of its own."""
    settings = _settings(pg_database)
    migrate(settings)
    role = f'odd "name" {secrets.token_hex(6)}'
    quoted = '"' + role.replace('"', '""') + '"'
    with psycopg.connect(pg_database) as connection:
        connection.execute(f"create role {quoted}".encode())
    try:
        grants.apply(settings, [grants.Grant("operator", role)])
        with psycopg.connect(pg_database) as connection:
            row = connection.execute(
                "select has_table_privilege(%s, 'shop.relevo_outbox', 'select')", (role,)
            ).fetchone()
        assert row == (True,)
        with pytest.raises(Exception, match="does not exist"):
            grants.apply(settings, [grants.Grant("operator", "nobody-of-that-name")])
    finally:
        with psycopg.connect(pg_database) as connection:
            connection.execute(f"drop owned by {quoted}; drop role {quoted}".encode())


def test_what_cannot_be_granted_is_told() -> None:
    """A wrong form, an unknown duty, and a database without roles."""
    for text in ("shop_app", "writer:", "boss:shop_app", ""):
        with pytest.raises(UsageError, match=r"ROLE:NAME"):
            grants.parse([text])
    assert grants.parse(["writer:a, relay:b", "writer:c"]) == [
        grants.Grant("writer", "a"),
        grants.Grant("relay", "b"),
        grants.Grant("writer", "c"),
    ]
    with pytest.raises(ConfigError, match="SQLite has no roles"):
        grants.sql(load(environ={}), [grants.Grant("writer", "a")])


def _settings(url: str) -> Settings:
    return load(environ={}, overrides={"database.url": url, "database.schema": "shop"})
