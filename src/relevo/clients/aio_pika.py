"""The one place that imports aio-pika, and aiormq below it.

Relevo uses aiormq's connections and channels themselves: robust connections declare and consume again by themselves,
and then a delivery tag of before could acknowledge a message of after.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from typing import Any, Final
from urllib.parse import urlsplit

from relevo.clients.amqp_decoding import reading_anything
from relevo.errors import ConfigError, MissingExtraError, UnreachableError

HEARTBEAT_S: Final = 10
"""The server gives up a connection that is silent for twice as long."""
GRACE: Final = 1.2
"""And this side one that is silent for so many times as long, within a lease: the server sends something in half."""
CLOSE_TIMEOUT_S: Final = 3.0

_letting_go: set[asyncio.Task[None]] = set()

for _name in ("aiormq", "aio_pika"):
    logging.getLogger(_name).addHandler(logging.NullHandler())
    logging.getLogger(_name).setLevel(logging.CRITICAL)  # every lost connection is told in Relevo's own words


def aiormq() -> Any:
    """The module ``aiormq``; raises ``MissingExtraError`` if aio-pika is not installed."""
    try:
        import aio_pika  # noqa: F401
        import aiormq
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("aio_pika", "aiormq"):
            raise
        raise MissingExtraError("aio-pika", "rabbitmq", "an amqp:// broker") from error
    return aiormq


def lost() -> tuple[type[Exception], ...]:
    """What the client raises when a connection or channel is gone; time-outs are ``OSError``s. For ``except``."""
    return (OSError, RuntimeError, aiormq().exceptions.AMQPError)


def end_if_cancelled() -> None:
    """To be asked where one of ``lost`` was caught: the client turns the cancellation of a call into such an error, and
    whoever was cancelled must not go on as if the server were away. Not inside ``asyncio.timeout``, which cancels too.
    Raises ``CancelledError``."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def properties(**values: Any) -> Any:
    """Properties of a message."""
    return aiormq().spec.Basic.Properties(**values)


async def connect(url: str, *, timeout_s: float, name: str) -> Any:
    """An open connection. Raises ``UnreachableError``, or ``ConfigError`` for a wrong user or password."""
    module = aiormq()
    separator = "&" if urlsplit(url).query else "?"
    # The name is a client property, shown by the server's tools.
    connecting = asyncio.ensure_future(_open(module, f"{url}{separator}heartbeat={HEARTBEAT_S}&name={name}"))
    done, _ = await asyncio.wait([connecting], timeout=timeout_s)
    if not done:
        connecting.cancel()
        raise UnreachableError(f"RabbitMQ at {place_of(url)} did not answer in {timeout_s:g} s")
    errors = module.exceptions
    try:
        return connecting.result()
    except (errors.AuthenticationError, errors.ProbableAuthenticationError):
        raise ConfigError(f"RabbitMQ at {place_of(url)} refuses this user or password") from None
    except (errors.ConnectionNotAllowed, errors.InvalidFrameError):
        # The server closed instead of opening the virtual host; the client drops its code. It may be starting.
        raise UnreachableError(
            f"RabbitMQ at {place_of(url)} does not open the virtual host: missing, not for this user, or not ready"
        ) from None
    except (errors.AMQPError, OSError, asyncio.CancelledError) as error:
        raise UnreachableError(f"RabbitMQ at {place_of(url)} does not answer ({type(error).__name__})") from None


async def _open(module: Any, url: str) -> Any:
    with reading_anything():
        connection = _connection_class(module)(url)
        await connection.connect()
        return connection


@functools.cache
def _connection_class(module: Any) -> Any:
    class Connection(module.Connection):  # type: ignore[misc]
        HEARTBEAT_GRACE_MULTIPLIER = GRACE

    return Connection


def let_go(connection: Any) -> None:
    """Close without waiting: the other side may be frozen."""
    task = asyncio.ensure_future(close(connection))
    _letting_go.add(task)
    task.add_done_callback(_letting_go.discard)


async def settled_down() -> None:
    """Wait, bounded, for what was let go on this loop: its tasks would end in noise when the loop does."""
    loop = asyncio.get_running_loop()
    if mine := [task for task in _letting_go if task.get_loop() is loop]:
        await asyncio.wait(mine, timeout=CLOSE_TIMEOUT_S)


async def close(connection: Any) -> None:
    """Close in good order, bounded."""
    closing = asyncio.ensure_future(connection.close())
    await asyncio.wait([closing], timeout=CLOSE_TIMEOUT_S)
    if not closing.done():
        closing.cancel()
    with contextlib.suppress(BaseException):
        closing.exception()
    with contextlib.suppress(BaseException):
        connection.closing.exception()  # looked at


def place_of(url: str) -> str:
    """Host, port and virtual host: for messages, without user and password."""
    parts = urlsplit(url)
    host = parts.hostname or "localhost"
    return f"{host}:{parts.port or (5671 if parts.scheme == 'amqps' else 5672)}{parts.path.rstrip('/')}"
