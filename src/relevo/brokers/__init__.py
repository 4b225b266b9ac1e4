"""Brokers by URL. An adapter is one folder; it is imported when its scheme is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final, cast

from relevo.errors import ConfigError
from relevo.loggers import guard
from relevo.ports.broker import Broker, BrokerCapabilities
from relevo.settings import redact

guard()

Options = Mapping[str, str | int | float | bool]

ADAPTERS: Final[Mapping[str, str]] = {
    "embedded": "relevo.brokers.embedded",
    "kafka": "relevo.brokers.kafka",
    "amqp": "relevo.brokers.rabbitmq",
    "amqps": "relevo.brokers.rabbitmq",
    "postgresql": "relevo.brokers.postgres",
    "postgres": "relevo.brokers.postgres",
}
"""Scheme to package. The package has ``NAME``, ``CONFIRMS``, ``CAPABILITIES`` and ``open_broker(url, options)``;
importing it loads no third-party client."""


def broker_for(url: str, options: Options | None = None) -> Broker:
    """The broker at ``url``; connects to nothing. Raises ``ConfigError`` for an unknown scheme or option,
    ``MissingExtraError`` when the broker's client is not installed."""
    return cast(Broker, _adapter(url).open_broker(url, dict(options or {})))


def confirms(url: str) -> str:
    """When a send counts at this broker, in words. Raises ``ConfigError`` for an unknown scheme."""
    return str(_adapter(url).CONFIRMS)


def _adapter(url: str) -> Any:
    scheme, colon, _ = url.partition(":")
    package = ADAPTERS.get(scheme)
    if package is None or not colon:
        known = ", ".join(f"{name}:" for name in sorted(ADAPTERS))
        raise ConfigError(f"broker.url {redact(url)!r} has no scheme Relevo knows; known are {known}")
    return importlib.import_module(package)


def capabilities_table() -> str:
    """A Markdown table of what each broker can do, from the adapters' own data."""
    adapters = [importlib.import_module(package) for package in dict.fromkeys(ADAPTERS.values())]
    rows = [
        "| capability | " + " | ".join(adapter.NAME for adapter in adapters) + " |",
        "|---|" + "---|" * len(adapters),
    ]
    for field in BrokerCapabilities.__struct_fields__:
        values = (_cell(getattr(adapter.CAPABILITIES, field)) for adapter in adapters)
        rows.append(f"| `{field}` | " + " | ".join(values) + " |")
    return "\n".join(rows) + "\n"


def _cell(value: bool | int | None) -> str:
    match value:
        case None:
            return "the topic's own"
        case bool():
            return "yes" if value else "no"
        case _:
            return f"{value:,}"
