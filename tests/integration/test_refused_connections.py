"""A server that answers and refuses is a mistake to be put right, by its code; one that is busy is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from relevo import Relay
from relevo.clients import database_for
from relevo.errors import ConfigError, UnreachableError
from relevo.ops.migrate import check, migrate
from relevo.settings import BrokerSettings, DatabaseSettings, RelaySettings, Settings
from relevo.storage import holding
from relevo.storage.ready import ensure_ready
from tests.support.private_postgres import PrivatePostgres, binary
from tests.support.waiting import eventually

pytestmark = pytest.mark.xdist_group("refused")

REFUSALS = {
    "wrong password": ("secret:wrong", "postgres", "28P01"),
    "no password": ("secret", "postgres", "28P01"),
    "no such role": ("nobody", "postgres", "28000"),
    "no such database": ("relevo", "nope", "3D000"),
    "no entry in pg_hba.conf": ("barred", "postgres", "28000"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivatePostgres]:
    made = PrivatePostgres(tmp_path_factory.mktemp("refused"), binary("usual"), {"lc_messages": "C"})
    made.create()
    made.start()
    try:
        made.query("create role secret login password 'right'")
        made.query("create role barred login")
        hba = made.data / "pg_hba.conf"
        lines = ["host all secret 127.0.0.1/32 scram-sha-256", "host all barred 127.0.0.1/32 reject"]
        hba.write_text("\n".join([*lines, "host all all 127.0.0.1/32 trust", ""]))
        made.query("select pg_reload_conf()")
        yield made
    finally:
        made.stop()


def settings_of(server: PrivatePostgres, user: str, database: str, tmp: Path) -> Settings:
    return Settings(
        database=DatabaseSettings(url=f"postgresql://{user}@127.0.0.1:{server.port}/{database}"),
        broker=BrokerSettings(url=f"embedded:{tmp}/b.db"),
        relay=RelaySettings(lease_s=3.0, send_timeout_s=1.0),
    )


@pytest.mark.parametrize("what", REFUSALS)
async def test_a_refusal_is_a_mistake(server: PrivatePostgres, what: str, tmp_path: Path) -> None:
    user, name, code = REFUSALS[what]
    settings = settings_of(server, user, name, tmp_path)
    if what == "no password":
        code = ""  # libpq gives up by itself: the server only asked
    for act in (lambda: ask(settings), lambda: Relay(settings).run(asyncio.Event())):
        with pytest.raises(ConfigError if code else (ConfigError, UnreachableError)) as caught:
            await act()
        assert code in str(caught.value) and "wrong@" not in str(caught.value)
        assert caught.value.exit_code == 78 or not code
    with pytest.raises(ConfigError if code else (ConfigError, UnreachableError), match=code):
        await asyncio.to_thread(check, settings)


async def test_a_closed_port_is_nobody(server: PrivatePostgres, tmp_path: Path) -> None:
    settings = settings_of(server, "relevo", "postgres", tmp_path)
    away = Settings(database=DatabaseSettings(url="postgresql://relevo@127.0.0.1:1/postgres"), broker=settings.broker)
    with pytest.raises(UnreachableError) as caught:
        await ask(away)
    assert caught.value.exit_code == 69


async def test_once_it_runs_a_refusal_is_waited_for(server: PrivatePostgres, tmp_path: Path) -> None:
    """A password that is changed, or a reload of pg_hba.conf, under a relay that runs."""
    settings = settings_of(server, "secret:right", "postgres", tmp_path)
    server.query("grant all on database postgres to secret")
    server.query("grant all on schema public to secret")
    await asyncio.to_thread(migrate, settings)
    async with Relay(settings) as relay:
        await eventually(lambda: relay.health().ready, what="it works")
        server.query("alter role secret password 'other'")
        server.query("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'secret'")
        await eventually(lambda: "28P01" in str(relay.health().problems), what="it says what it is")
        assert relay.health().live and not relay.health().ready
        server.query("alter role secret password 'right'")
        await eventually(lambda: relay.health().ready, what="it goes on by itself")


async def ask(settings: Settings) -> None:
    database = database_for(settings.database)
    try:
        await ensure_ready(database, settings)
    finally:
        await database.aclose()


@pytest.mark.parametrize("options", ["nosuch=1", "options=-c%20nosuchparameter%3D1", "options=-c%20work_mem%3Dmuch"])
async def test_a_parameter_of_the_url_that_is_none_is_a_mistake(server: PrivatePostgres, options: str) -> None:
    url = f"postgresql://postgres:hidden-word@127.0.0.1:{server.port}/postgres?{options}"
    database = database_for(DatabaseSettings(url=url))
    try:
        with pytest.raises(ConfigError, match=r"nosuch|work_mem") as raised:
            await database.run(holding.next_due("consumer", "c"))
        assert "hidden-word" not in str(raised.value)
    finally:
        await database.aclose()


async def test_no_right_to_connect_is_a_mistake(server: PrivatePostgres) -> None:
    server.query("create role outsider login")
    server.query("create database closed")
    server.query("revoke connect on database closed from public")
    database = database_for(DatabaseSettings(url=f"postgresql://outsider@127.0.0.1:{server.port}/closed"))
    try:
        with pytest.raises(ConfigError, match=r"refuses the connection: .*permission denied for database.*42501"):
            await database.run(holding.next_due("consumer", "c"))
    finally:
        await database.aclose()
