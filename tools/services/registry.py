"""The services there are. To add one: a file with its class, and a line here."""

from __future__ import annotations

from .base import Service
from .errors import ServiceError
from .kafka import Kafka
from .postgres import Postgres
from .rabbitmq import RabbitMQ, RabbitMQ4

SERVICES: tuple[type[Service], ...] = (Postgres, Kafka, RabbitMQ, RabbitMQ4)


def names(*, optional: bool = False) -> list[str]:
    """Those that are started together; with ``optional`` all there are."""
    return [kind.name for kind in SERVICES if optional or not kind.optional]


def service(name: str) -> Service:
    for kind in SERVICES:
        if kind.name == name:
            return kind()
    raise ServiceError(f"there is no service {name}. Known: {', '.join(names(optional=True))}.")
