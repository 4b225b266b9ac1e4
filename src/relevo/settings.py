"""Settings: one tree of plain values from ``relevo.toml``, the environment (``RELEVO_…``) and arguments, in that order
of growing precedence. The same names everywhere; an unknown one is an error that names the nearest known one.

``RELEVO_DATABASE_URL`` is ``[database] url``; ``RELEVO_RELAY_BATCH_MAX`` is ``[relay] batch_max``.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from relevo.errors import ConfigError
from relevo.message import MESSAGE_BYTES_MAX
from relevo.redacting import redact as redact
from relevo.redacting import redact_text as redact_text
from relevo.settings_tree import put, unknown

FILE_NAME = "relevo.toml"


class DatabaseSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Where the outbox, inbox and bookkeeping live."""

    url: str = "sqlite:///relevo.db"
    schema: str | None = None
    prefix: str = "relevo_"
    prepared_statements: bool = True

    def __repr__(self) -> str:
        return f"DatabaseSettings(url={redact(self.url)!r}, schema={self.schema!r}, prefix={self.prefix!r})"


class BrokerSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The broker, and options passed to its client as they are (``[broker.options]``)."""

    url: str = "embedded:relevo-broker.db"
    options: dict[str, str | int | float | bool] = {}

    def __repr__(self) -> str:
        return f"BrokerSettings(url={redact(self.url)!r}, options=<{len(self.options)}>)"


class OutboxSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The write side. ``validate``: read every event back from its payload and compare, before it is written."""

    validate: bool = True


class RelaySettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The relay process. Durations in seconds. ``source`` "auto": what the tables are read by already; new tables are
    read by "log" on PostgreSQL, by "mark" on SQLite. A connection to PostgreSQL without an answer for ``lease_s`` less
    the larger of ``send_timeout_s`` and a third of it (2 s at least; a quarter more until it is seen) is given up."""

    source: Literal["auto", "mark", "log", "wal"] = "auto"
    batch_max: int = 2000
    batch_bytes_max: int = 8_000_000
    lease_s: float = 15.0
    send_timeout_s: float = 5.0
    poll_min_s: float = 0.005
    poll_max_s: float = 0.5
    stop_timeout_s: float = 20.0


class ConsumerSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Consumer processes. Durations in seconds. ``in_flight_max``: messages taken and not settled. ``batch``:
    messages handled in one transaction at most, and one by one when anything goes wrong; 1 switches that off.
    ``threads`` and ``connections_max``: transactions at once, of plain and ``async`` handlers; each has a connection.
    ``handler_idle_timeout_s``: PostgreSQL ends a handler's transaction that is idle so long: a frozen process then does
    not keep its locks. A handler that waits for other things for longer needs a larger one. Not set:
    20 leases, at least 60 seconds, unless the server, the database or the role has a time-out of its own; 0: never.
    A connection to PostgreSQL without an answer to one of Relevo's own statements for two thirds of ``lease_s`` (2 s at
    least) is given up, a handler's too. A handler's own statement is waited for, unless the server says that it waits
    for the handler: then the connection hangs and is ended."""

    in_flight_max: int = 500
    connections_max: int = 10
    batch_max: int = 250
    batch: int = 100
    threads: int = 8
    lease_s: float = 15.0
    inbox_window_s: float = 7 * 86_400.0
    redelivery_s: float = 86_400.0
    stop_timeout_s: float = 20.0
    handler_idle_timeout_s: float | None = None


class EffectsSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Processes that perform effects. Durations in seconds. A lease is the effect's own time-out and ``grace_s``.
    ``at_once``: acts of one effect under way in one process. ``poll_s``: how often another process's effects are looked
    for."""

    grace_s: float = 5.0
    at_once: int = 8
    poll_s: float = 0.5


class RetentionSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What becomes of settled messages, done by one relay for all. ``outbox_days``: how long they stay in the outbox
    (0: for ever), ``then``: what follows; ``partitions`` are cut every ``partition_days`` and dropped whole.
    ``effects_days``: how long effects that are done are remembered (0: for ever). ``every_s``: how often relays purge
    (0: never, only ``relevo purge``). ``batch`` and ``pause_s``: rows per transaction, and seconds between two, at
    least (as long as the last one took; 0: none). The inbox has ``consumer.inbox_window_s``."""

    outbox_days: float = 7.0
    then: Literal["delete", "archive", "partitions"] = "delete"
    partition_days: float = 1.0
    effects_days: float = 365.0
    every_s: float = 3600.0
    batch: int = 1000
    pause_s: float = 0.05


class DestinationSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a topic wants when its broker rejects a message."""

    on_rejected: Literal["park", "block", "skip"] = "park"


class NamedConsumerSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What one consumer is to do, whatever its code says; what is not set is as its code says."""

    dead_letters: bool | None = None


class HealthSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Liveness and readiness over HTTP; ``port`` 0 switches it off."""

    host: str = "127.0.0.1"
    port: int = 0


class LogSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    format: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warning", "error"] = "info"


class Settings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Everything that can be set. ``service`` names the CloudEvents source, ``urn:relevo:<service>``."""

    service: str = "app"
    message_bytes_max: int = MESSAGE_BYTES_MAX
    database: DatabaseSettings = msgspec.field(default_factory=DatabaseSettings)
    broker: BrokerSettings = msgspec.field(default_factory=BrokerSettings)
    outbox: OutboxSettings = msgspec.field(default_factory=OutboxSettings)
    relay: RelaySettings = msgspec.field(default_factory=RelaySettings)
    consumer: ConsumerSettings = msgspec.field(default_factory=ConsumerSettings)
    effects: EffectsSettings = msgspec.field(default_factory=EffectsSettings)
    consumers: dict[str, NamedConsumerSettings] = {}
    destinations: dict[str, DestinationSettings] = {}
    retention: RetentionSettings = msgspec.field(default_factory=RetentionSettings)
    health: HealthSettings = msgspec.field(default_factory=HealthSettings)
    log: LogSettings = msgspec.field(default_factory=LogSettings)

    @property
    def source_uri(self) -> str:
        return f"urn:relevo:{self.service}"


_SECTIONS: Mapping[str, type[msgspec.Struct]] = {
    "database": DatabaseSettings,
    "broker": BrokerSettings,
    "outbox": OutboxSettings,
    "relay": RelaySettings,
    "consumer": ConsumerSettings,
    "effects": EffectsSettings,
    "retention": RetentionSettings,
    "health": HealthSettings,
    "log": LogSettings,
}
_NAMED: Mapping[str, type[msgspec.Struct]] = {"consumers": NamedConsumerSettings, "destinations": DestinationSettings}
_FREE_TABLES = {("broker", "options")}


def load(
    path: str | Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Settings:
    """Settings from file, environment and ``overrides`` (dotted names: ``{"relay.lease_s": 2.0}``).

    ``path``: ``None`` reads ``$RELEVO_CONFIG`` or ``relevo.toml`` in the working directory if there is one. Raises
    ``ConfigError`` naming the file and the setting.
    """
    environ = os.environ if environ is None else environ
    if path is None:
        path = environ.get("RELEVO_CONFIG") or (FILE_NAME if Path(FILE_NAME).exists() else None)
    tree: dict[str, Any] = {}
    where = "the settings"
    if path is not None:
        where = str(path)
        tree = _read(Path(path))
        _check_names(tree, where)
    for steps, text in _from_environment(environ).items():
        put(tree, steps, text)
    for name, value in (overrides or {}).items():
        if value is not None:
            put(tree, name.split("."), value)
    try:
        settings = msgspec.convert(tree, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from None
    return check(settings, where)


def check(settings: Settings, where: str = "the settings") -> Settings:
    """Return ``settings`` if the values fit together; raise ``ConfigError`` if not."""
    relay = settings.relay
    problems = [
        (relay.batch_max < 1, "relay.batch_max must be at least 1"),
        (relay.lease_s <= 0, "relay.lease_s must be above 0"),
        (
            relay.send_timeout_s >= relay.lease_s,
            "relay.send_timeout_s must be below relay.lease_s: a relay stops sending that long before its lease ends",
        ),
        (
            not 0 < relay.poll_min_s <= relay.poll_max_s,
            "relay.poll_min_s must be above 0 and not above poll_max_s",
        ),
        (settings.consumer.in_flight_max < 1, "consumer.in_flight_max must be at least 1"),
        (settings.consumer.batch_max < 1, "consumer.batch_max must be at least 1"),
        (settings.consumer.batch < 1, "consumer.batch must be at least 1"),
        (settings.consumer.connections_max < 1, "consumer.connections_max must be at least 1"),
        (settings.consumer.threads < 1, "consumer.threads must be at least 1"),
        (settings.retention.outbox_days < 0, "retention.outbox_days must not be below 0"),
        (settings.retention.partition_days <= 0, "retention.partition_days must be above 0"),
        (settings.retention.effects_days < 0, "retention.effects_days must not be below 0"),
        (settings.retention.every_s < 0, "retention.every_s must not be below 0"),
        (not 1 <= settings.retention.batch <= 10_000, "retention.batch must be from 1 to 10000"),
        (settings.retention.pause_s < 0, "retention.pause_s must not be below 0"),
        (settings.consumer.inbox_window_s <= 0, "consumer.inbox_window_s must be above 0"),
        (settings.consumer.lease_s <= 0, "consumer.lease_s must be above 0"),
        (settings.effects.grace_s <= 0, "effects.grace_s must be above 0"),
        (settings.effects.at_once < 1, "effects.at_once must be at least 1"),
        (settings.effects.poll_s <= 0, "effects.poll_s must be above 0"),
    ]
    for bad, message in problems:
        if bad:
            raise ConfigError(f"{where}: {message}")
    return settings


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file. `relevo init` writes one") from None
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None


def _check_names(tree: Mapping[str, Any], where: str) -> None:
    _check_table(tree, Settings, "", where)
    for name, section in _SECTIONS.items():
        if isinstance(tree.get(name), dict):
            _check_table(tree[name], section, f"{name}.", where)
    for kind, struct in _NAMED.items():
        named = tree.get(kind)
        for name, table in named.items() if isinstance(named, dict) else ():
            if isinstance(table, dict):
                _check_table(table, struct, f'{kind}."{name}".', where)


def _check_table(table: Mapping[str, Any], struct: type[msgspec.Struct], prefix: str, where: str) -> None:
    for name in table:
        if name not in struct.__struct_fields__:
            raise ConfigError(
                unknown(f"{prefix}{name}", [f"{prefix}{known}" for known in struct.__struct_fields__], where)
            )


_IGNORED = {"RELEVO_CONFIG", "RELEVO_PROBE", "RELEVO_DEBUG", "RELEVO_REQUIRE_SERVICES"}
_IGNORED_PREFIXES = ("RELEVO_TEST_", "RELEVO_SERVICES_", "RELEVO_DEMO_", "RELEVO_BENCH_")


def _from_environment(environ: Mapping[str, str]) -> dict[tuple[str, ...], str]:
    found: dict[tuple[str, ...], str] = {}
    known: dict[str, tuple[str, ...]] = {f"RELEVO_{name.upper()}": (name,) for name in ("service", "message_bytes_max")}
    for section, struct in _SECTIONS.items():
        for name in struct.__struct_fields__:
            if (section, name) not in _FREE_TABLES:
                known[f"RELEVO_{section.upper()}_{name.upper()}"] = (section, name)
    for variable, value in environ.items():
        if not variable.startswith("RELEVO_") or variable in _IGNORED or variable.startswith(_IGNORED_PREFIXES):
            continue
        if variable not in known:
            raise ConfigError(unknown(variable, list(known), "the environment"))
        found[known[variable]] = value
    return found
