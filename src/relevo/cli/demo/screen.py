"""What the demo shows: live counters on a terminal, plain lines elsewhere, and the ledger at the end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

PLAIN_EVERY_S = 2.0


@dataclass
class Scene:
    """Everything that is shown, as it is now."""

    orders_wanted: int
    ledger: Any = None
    on_the_wire: int = 0
    duplicates: int = 0
    relay_pid: int | None = None
    consumer_pid: int | None = None
    notes: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    ended: bool = False

    def note(self, text: str) -> None:
        self.notes.append(f"{time.monotonic() - self.started:5.1f} s  {text}")

    def finish(self, *, killed: bool) -> None:
        self.ended = True
        if killed and self.duplicates:
            times = "message" if self.duplicates == 1 else "messages"
            self.note(f"{self.duplicates} {times} came twice on the wire; every effect happened once")


class Screen:
    """Writes to stdout; a terminal gets a live table."""

    def __init__(self) -> None:
        self._console = Console()

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)

    @contextlib.contextmanager
    def live(self) -> Iterator[Callable[[Scene], None]]:
        if self._console.is_terminal:
            with Live(console=self._console, refresh_per_second=10) as live:
                yield lambda scene: live.update(_render(scene), refresh=scene.ended)
            return
        last = [0.0]
        told = [0]

        def show(scene: Scene) -> None:
            for note in scene.notes[told[0] :]:
                self.say(note)
            told[0] = len(scene.notes)
            if scene.ended:
                self._console.print(_ledger(scene))
            elif time.monotonic() - last[0] >= PLAIN_EVERY_S:
                last[0] = time.monotonic()
                found = scene.ledger
                self.say(
                    f"{found.orders} orders, {scene.on_the_wire} on the wire, {found.charges}/{found.changes} charged"
                )

        yield show

    def next_steps(self, *, on_servers: bool) -> None:
        if on_servers:
            return
        self.say("\nThe same shop on PostgreSQL and Kafka, three commands:")
        self.say(
            "  pip install 'relevo\\[postgres,kafka]'       # from a checkout: make install, then . .venv/bin/activate"
        )
        self.say("  make services-up                            # prints two URLs; or servers of your own")
        self.say("  relevo demo --database postgresql://… --broker kafka://…")


def _render(scene: Scene) -> Group:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="bold")
    table.add_column()
    found = scene.ledger
    table.add_row(
        f"{found.orders}", f"of {scene.orders_wanted} orders in the shop, {found.changes} events written with them"
    )
    table.add_row(f"{scene.on_the_wire}", "messages on the wire")
    table.add_row(f"{found.charges}", "charges")
    table.add_row(f"{found.parcels}", "parcels")
    table.add_row(f"{scene.duplicates}", "duplicates on the wire, absorbed by the inbox")
    relay = f"relay {scene.relay_pid or 'DEAD'}    consumers {scene.consumer_pid or 'stopped'}"
    parts: list[Any] = [table, Text(relay, style="dim"), *(Text(note, style="yellow") for note in scene.notes)]
    return Group(*parts, _ledger(scene)) if scene.ended else Group(*parts)


def _ledger(scene: Scene) -> Table:
    found = scene.ledger
    table = Table(title="Ledger", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    rows = [
        (
            "placed = charged",
            f"{found.placed_cents / 100:,.2f} = {found.charged_cents / 100:,.2f}",
            found.placed_cents == found.charged_cents,
        ),
        ("events = charges", f"{found.changes} = {found.charges}", found.changes == found.charges),
        ("orders = parcels", f"{found.orders} = {found.parcels}", found.orders == found.parcels),
        ("charged twice", f"{found.twice}", not found.twice),
        ("out of order", f"{found.swapped}", not found.swapped),
        ("duplicates on the wire, absorbed", f"{scene.duplicates}", scene.duplicates > 0),
    ]
    for name, value, good in rows:
        table.add_row(name, value, Text("ok", style="green") if good else Text("NOT OK", style="bold red"))
    return table
