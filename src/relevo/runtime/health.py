"""Liveness and readiness over HTTP/1.1, with nothing but asyncio: for an orchestrator's probes, not for the public.

``GET /live`` answers 200 while the event loop runs, ``/ready`` 200 or 503 with what is wrong, ``/status`` everything.
It shares the loop of the work, so a loop that hangs does not answer: that is what a liveness probe should see.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, Protocol

import msgspec

from relevo.errors import ConfigError

log = logging.getLogger("relevo.health")

HEADER_BYTES_MAX: Final = 8192
REQUEST_TIMEOUT_S: Final = 5.0
CONNECTIONS_MAX: Final = 64


class Health(Protocol):
    """What a process knows about itself, from memory. ``problems``: what is unavailable, by name, in plain words;
    ``detail``: whatever else an operator wants to see, as JSON values."""

    @property
    def live(self) -> bool: ...

    @property
    def ready(self) -> bool: ...

    @property
    def problems(self) -> Mapping[str, Any]: ...

    @property
    def detail(self) -> Mapping[str, Any]: ...


class HealthServer:
    """Answers on ``host:port`` from ``snapshot()``, which must be quick and must not wait. ``port`` 0 takes a free one.

    One request per connection. A request that is too long, too slow or not HTTP is refused, never waited for.
    """

    def __init__(self, host: str, port: int, snapshot: Callable[[], Health]) -> None:
        self._host, self._port, self._snapshot = host, port, snapshot
        self._server: asyncio.Server | None = None
        self._open = 0

    @property
    def port(self) -> int:
        """Where it listens; 0 before ``start``."""
        return int(self._server.sockets[0].getsockname()[1]) if self._server and self._server.sockets else 0

    async def start(self) -> None:
        """Listen. Raises ``ConfigError`` if the address cannot be had."""
        try:
            self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=HEADER_BYTES_MAX)
        except OSError as error:
            raise ConfigError(
                f"health.host and health.port: cannot listen on {self._host}:{self._port} ({error.strerror or error})"
            ) from None

    async def aclose(self) -> None:
        """Stop listening. Idempotent."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def __aenter__(self) -> HealthServer:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                if self._open <= CONNECTIONS_MAX:
                    status, body, head_only = await self._answer(reader)
                    writer.write(_response(status, body, head_only))
                    await writer.drain()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError):
            pass  # the peer is gone or too slow; there is nobody to tell
        finally:
            self._open -= 1
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[HTTPStatus, Mapping[str, Any], bool]:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, {"error": "the request's head is too long"}, False
        parts = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1.") or not parts[1].startswith("/"):
            return HTTPStatus.BAD_REQUEST, {"error": "this is not an HTTP/1.1 request"}, False
        method, target, _ = parts
        if method not in ("GET", "HEAD"):
            return HTTPStatus.METHOD_NOT_ALLOWED, {"error": "only GET and HEAD are answered"}, False
        return *self._look(target.partition("?")[0]), method == "HEAD"

    def _look(self, path: str) -> tuple[HTTPStatus, Mapping[str, Any]]:
        if path not in ("/live", "/ready", "/status"):
            return HTTPStatus.NOT_FOUND, {"error": "there are /live, /ready and /status"}
        try:
            health = self._snapshot()
        except Exception:
            log.exception("the health of this process cannot be told")
            return HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "the health of this process cannot be told; see its log"}
        if path == "/status":
            return HTTPStatus.OK, {
                "live": health.live,
                "ready": health.ready,
                "problems": health.problems,
                "detail": health.detail,
                **({"ages": ages} if (ages := getattr(health, "ages", None)) else {}),
            }
        good = health.live if path == "/live" else health.ready
        body: dict[str, Any] = {path[1:]: good}
        if path == "/ready":
            body["problems"] = health.problems
            if ages := getattr(health, "ages", None):
                body["ages"] = ages
        return HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE, body


def _response(status: HTTPStatus, body: Mapping[str, Any], head_only: bool) -> bytes:
    payload = msgspec.json.encode(body, enc_hook=str) + b"\n"
    allow = "Allow: GET, HEAD\r\n" if status == HTTPStatus.METHOD_NOT_ALLOWED else ""
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\nCache-Control: no-store\r\n{allow}Connection: close\r\n\r\n"
    )
    return head.encode("ascii") + (b"" if head_only else payload)
