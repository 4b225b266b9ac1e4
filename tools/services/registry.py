"""The services there are. To add one: a file with its class, and a line here."""

from __future__ import annotations

from .base import Service
from .errors import ServiceError
from .kafka import Kafka
from .postgres import Postgres
from .rabbitmq import RabbitMQ

SERVICES: tuple[type[Service], ...] = (Postgres, Kafka, RabbitMQ)


def names() -> list[str]:
    return [kind.name for kind in SERVICES]


def service(name: str) -> Service:
    for kind in SERVICES:
        if kind.name == name:
            return kind()
    raise ServiceError(f"there is no service {name}. Known: {', '.join(names())}.")
