"""The play: prepare a shop, run its processes, kill the relay, wait for the ledger."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relevo.brokers import broker_for
from relevo.cli.demo import shop
from relevo.cli.demo.processes import Process
from relevo.cli.demo.screen import Scene, Screen
from relevo.cli.demo.tap import Tap
from relevo.errors import RelevoError
from relevo.ops.migrate import migrate
from relevo.settings import Settings, load, redact

LEASE_S = 1.5
KILL_AT = 4
"""The relay dies between the broker's confirm and the settle of this page. The orders are placed in as many parts, each
after the one before was charged: on a slow machine, too, the relay has this many pages to send."""
PACE_S = 0.012
"""Between two orders, so that there is something to watch."""
PATIENCE_S = 90.0
"""Without any progress: however slow the machine is, what moves is waited for."""

_TOML = """\
service = "shop"
[database]
url = "{database}"
[broker]
url = "{broker}"
{options}
[relay]
lease_s = {lease_s}
send_timeout_s = 0.5
[consumer]
lease_s = {lease_s}
"""


@dataclass
class Demo:
    """One run. Its files live in ``folder``; its processes are ended with it, whatever happens."""

    settings: Settings
    folder: Path
    orders: int
    relay: Process
    consumers: Process

    @classmethod
    @contextlib.contextmanager
    def prepared(cls, database: str | None, broker: str | None, orders: int, directory: str | None) -> Iterator[Demo]:
        """Tables, topics and a settings file; everything is let go of at the end."""
        folder = Path(directory or tempfile.mkdtemp(prefix="relevo-demo-")).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "relevo.toml"
        broker_url = broker or f"embedded:{folder / 'broker.db'}"
        config.write_text(
            _TOML.format(
                database=database or f"sqlite:///{folder / 'shop.db'}",
                broker=broker_url,
                options=f"options = {{ lease_s = {LEASE_S} }}" if broker_url.startswith("embedded:") else "",
                lease_s=LEASE_S,
            )
        )
        config.chmod(0o600)  # a URL given by the user may carry a password
        settings = load(config, environ={})
        relay = Process("relay", ["relay"], config, probe=f"relay.confirmed=kill:{KILL_AT}")
        consumers = Process("consumers", ["consume", "shop:billing", "shop:shipping"], config)
        try:
            yield cls(settings, folder, orders, relay, consumers)
        finally:
            relay.stop()
            consumers.stop()
            if directory is None:
                shutil.rmtree(folder, ignore_errors=True)

    def play(self, screen: Screen) -> bool:
        """Run it to the end; whether the ledger holds."""
        shop_module, database = shop.modules()
        screen.say(f"the shop runs on {redact(self.settings.database.url)} and {redact(self.settings.broker.url)}")
        migrate(self.settings)
        asyncio.run(self._ensure_topics())
        connection = database.connect(self.settings.database.url)
        for table in shop_module.TABLES:
            database.execute(connection, table)
        connection.commit()
        tap = Tap(self.settings.broker)
        tap.start()
        tap.ready.wait(10)
        self.relay.start()
        self.consumers.start()
        failure: list[BaseException] = []
        writer = threading.Thread(target=self._place, args=(shop_module, database, failure), daemon=True)
        writer.start()
        try:
            with screen.live() as show:
                holds = self._watch(shop_module, connection, writer, tap, show, failure)
        finally:
            connection.close()
            tap.stop()
        return holds

    def _watch(
        self,
        shop_module: Any,
        connection: Any,
        writer: threading.Thread,
        tap: Tap,
        show: Any,
        failure: list[BaseException],
    ) -> bool:
        scene = Scene(orders_wanted=self.orders)
        killed_at: float | None = None
        deadline = time.monotonic() + PATIENCE_S
        while True:
            if self.relay.was_killed() and killed_at is None:
                killed_at = time.monotonic()
                scene.note("the relay was killed with SIGKILL after the broker confirmed, before it settled")
            if killed_at is not None and self.relay.pid is None and time.monotonic() - killed_at > 1.0:
                self.relay.start()
                scene.note("a new relay starts; it waits for the dead one's lease, then sends that page again")
            before, scene.ledger = scene.ledger, shop_module.ledger(connection)
            connection.rollback()
            if scene.ledger != before:
                deadline = time.monotonic() + PATIENCE_S
            scene.on_the_wire, scene.duplicates = tap.messages, tap.duplicates
            scene.relay_pid, scene.consumer_pid = self.relay.pid, self.consumers.pid
            show(scene)
            if failure:
                raise failure[0]
            for process in (self.relay, self.consumers):
                if process.failed():
                    raise RelevoError(f"the process {process.name!r} ended unexpectedly:\n{process.tail()}")
            done = not writer.is_alive() and killed_at is not None and scene.ledger.holds and scene.duplicates > 0
            if done or time.monotonic() > deadline:
                scene.finish(killed=killed_at is not None)
                show(scene)
                return done
            time.sleep(0.1)

    def _place(self, shop_module: Any, database: Any, failure: list[BaseException]) -> None:
        """Place and amend orders, each in a transaction of its own; now and then one is rolled back."""
        parts = {1 + part * self.orders // KILL_AT for part in range(1, KILL_AT)}
        chance = random.Random(7)
        try:
            connection = database.connect(self.settings.database.url)
            ((last,),) = database.execute(connection, "select coalesce(max(order_id), 0) from shop_order")
            for number in range(1, self.orders + 1):
                order_id = int(last) + number
                if number in parts:
                    self._await_charged(shop_module, connection)
                if chance.random() < 0.15:  # a customer who changes their mind: no order, so no event
                    shop_module.place_order(connection, order_id, 1)
                    connection.rollback()
                shop_module.place_order(connection, order_id, chance.randrange(500, 20_000))
                connection.commit()
                for _ in range(chance.choice((0, 0, 1, 2))):
                    shop_module.amend_order(connection, order_id, chance.randrange(100, 1_000))
                    connection.commit()
                time.sleep(PACE_S)
            connection.close()
        except Exception as error:  # noqa: BLE001 - raised by the watcher, in the main thread
            failure.append(error)

    def _await_charged(self, shop_module: Any, connection: Any) -> None:
        """Until every event so far was handled; a relay that is dead or late is the watcher's matter."""
        deadline = time.monotonic() + PATIENCE_S
        charged = False
        while not charged and not self.relay.was_killed() and time.monotonic() < deadline:
            found = shop_module.ledger(connection)
            connection.rollback()
            charged = found.charges == found.changes
            time.sleep(0.05)

    async def _ensure_topics(self) -> None:
        broker = broker_for(self.settings.broker.url, self.settings.broker.options)
        await broker.ensure_topics(shop.TOPICS)
