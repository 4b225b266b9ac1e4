"""Faults at random statements and connections, all the time, beside a ledger run: a thread that injects them, and the
account of what it injected.

Everything is done by the real server or to real connections. Writers connect by themselves, as another role, and are
spared: they are the application, and what it does about its own errors is not at issue.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from tests.support.hanging import HangingProxy

WORKER = "ledger_worker"
"""The role of relays and consumers."""

RAISED = ("57014", "55P03", "40001", "40P01", "25006", "53100", "53200", "58030", "XX000", "P0001", "22023")
"""What statements of relays and consumers fail with: also codes that no list has."""

WRITTEN = ("outbox", "lane", "cursor", "held_key", "held_message", "inbox", "journal", "process", "duty", "destination")
READ = ("outbox", "lane", "inbox", "journal", "held_key", "process", "pause")
"""Tables that are locked exclusively for a moment, so that reading them waits and is cancelled by the role's limits."""

_TRIGGER = """
create function chaos() returns trigger language plpgsql security definer as $$
declare code text;
begin
  if session_user = '{worker}' and random() < {rate} then
    code := ({codes}::text[])[1 + floor(random() * {count})::int];
    perform nextval('chaos_' || code);
    raise exception 'injected' using errcode = code;
  end if;
  return null;
end $$
"""


def make_worker(url: str, rate: float) -> None:
    """The role of relays and consumers, with the limits a careful operator sets, and triggers that fail one statement
    in ``1 / rate`` that writes to a table of Relevo's. Each failure counts in a sequence, which no rollback takes
    back."""
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"drop role if exists {WORKER}")
        admin.execute(f"create role {WORKER} login replication in role relevo")
        admin.execute(f"alter role {WORKER} set lock_timeout = '1s'")
        admin.execute(f"alter role {WORKER} set statement_timeout = '4s'")
        for code in RAISED:
            admin.execute(f"create sequence chaos_{code}")
        codes = "array[" + ", ".join(f"'{code}'" for code in RAISED) + "]"
        admin.execute(_TRIGGER.format(worker=WORKER, rate=rate, codes=codes, count=len(RAISED)))
        for table in WRITTEN:
            admin.execute(
                f"create trigger chaos after insert or update or delete on relevo_{table} "
                "for each statement execute function chaos()"
            )


def raised(url: str) -> Counter[str]:
    """How often each code was raised."""
    counts: Counter[str] = Counter()
    with psycopg.connect(url, autocommit=True) as admin:
        for code in RAISED:
            row = admin.execute(
                sql.SQL("select case when is_called then last_value else 0 end from {}").format(
                    sql.Identifier(f"chaos_{code.lower()}")
                )
            ).fetchone()
            assert row is not None
            counts[f"error {code}"] = int(row[0])
    return counts


class Faults:
    """Injects one fault after the other until it is stopped; then waits until the last of them is over.

    ``database``: an administrator's URL. ``proxies``: what relays and consumers connect through, by the peer's name.
    ``freeze``: stops the broker for so many seconds, where it can be stopped.
    """

    def __init__(
        self,
        database: str,
        proxies: dict[str, HangingProxy],
        *,
        every_s: float,
        seed: int,
        freeze: Callable[[float], None] | None = None,
    ) -> None:
        self.injected: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self._database = database
        self._proxies = proxies
        self._every_s = every_s
        self._chance = random.Random(seed)
        self._freeze = freeze
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._guarded, daemon=True)

    @property
    def started(self) -> bool:
        return self._thread.ident is not None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """May be called again, and without a start."""
        self._stop.set()
        if self.started:
            self._thread.join(60)
        assert not self._thread.is_alive(), "the injector does not end"

    def report(self) -> str:
        everything = self.injected + raised(self._database)
        listed = ", ".join(f"{name} {count}" for name, count in sorted(everything.items()) if count)
        return f"injected {sum(everything.values())} faults: {listed}"

    def _guarded(self) -> None:
        try:
            with psycopg.connect(self._database, autocommit=True) as admin:
                kinds = list(self._kinds(admin))
                while not self._stop.wait(self._chance.uniform(0.5, 1.5) * self._every_s):
                    name, inject = self._chance.choice(kinds)
                    if inject():
                        self.injected[name] += 1
        except BaseException as error:  # raised in the main thread, by whoever looks
            self.failure = error

    def _kinds(self, admin: psycopg.Connection[tuple[object, ...]]) -> Iterator[tuple[str, Callable[[], bool]]]:
        chance = self._chance
        yield "statement cancelled", lambda: self._signal(admin, "pg_cancel_backend", "state = 'active'")
        yield "connection terminated", lambda: self._signal(admin, "pg_terminate_backend", "true")
        yield "table locked", self._lock
        yield "read-only", lambda: self._read_only(admin)
        yield "connections refused", lambda: self._refuse(admin)
        for peer, proxy in self._proxies.items():
            yield f"{peer} connection cut", lambda proxy=proxy: proxy.cut_one(chance)  # type: ignore[misc]
            yield f"{peer} connection silent", lambda proxy=proxy: proxy.hang_one(chance)  # type: ignore[misc]
            yield (
                f"{peer} replies late",
                lambda proxy=proxy: proxy.delay_one(chance, chance.uniform(0.5, 6.0)),  # type: ignore[misc]
            )
        if self._freeze is not None:
            yield "broker frozen", self._frozen

    def _signal(self, admin: psycopg.Connection[tuple[object, ...]], function: str, where: str) -> bool:
        row = admin.execute(
            f"select {function}(pid) from pg_stat_activity where usename = '{WORKER}' and {where} "
            "order by random() limit 1"
        ).fetchone()
        return row is not None and bool(row[0])

    def _lock(self) -> bool:
        table = f"relevo_{self._chance.choice(READ)}"
        with psycopg.connect(self._database) as holder:
            holder.execute("set lock_timeout = '2s'")
            try:
                holder.execute(f"lock table {table} in access exclusive mode")
            except psycopg.errors.LockNotAvailable:
                return False
            self._stop.wait(self._chance.uniform(0.5, 2.0))  # the fault lasts so long
        return True

    def _read_only(self, admin: psycopg.Connection[tuple[object, ...]]) -> bool:
        """As after a failover that went wrong, for a moment. Writers and this thread set the opposite themselves."""
        admin.execute("alter system set default_transaction_read_only = on")
        admin.execute("select pg_reload_conf()")
        try:
            self._stop.wait(self._chance.uniform(0.5, 2.0))
        finally:
            admin.execute("alter system reset default_transaction_read_only")
            admin.execute("select pg_reload_conf()")
        return True

    def _refuse(self, admin: psycopg.Connection[tuple[object, ...]]) -> bool:
        """No more connections for the role, and one of those that it has is ended."""
        admin.execute(f"alter role {WORKER} connection limit 1")
        try:
            self._signal(admin, "pg_terminate_backend", "true")
            self._stop.wait(self._chance.uniform(0.5, 2.0))
        finally:
            admin.execute(f"alter role {WORKER} connection limit -1")
        return True

    def _frozen(self) -> bool:
        assert self._freeze is not None
        self._freeze(self._chance.uniform(0.5, 3.0))
        return True


def writers_url(url: str) -> str:
    """For sessions that the server's read-only moments do not reach."""
    return urlsplit(url)._replace(query="options=-c%20default_transaction_read_only%3Doff").geturl()


def workers_url(url: str, port: int) -> str:
    """For relays and consumers: their role, through the proxy."""
    parts = urlsplit(url)
    return parts._replace(netloc=f"{WORKER}@127.0.0.1:{port}", query="").geturl()
