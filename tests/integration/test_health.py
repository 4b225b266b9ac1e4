"""The health endpoint over real sockets: what it says, and what it refuses."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from relevo.errors import ConfigError
from relevo.runtime import health as health_module
from relevo.runtime.health import HealthServer


@dataclass
class Fake:
    """A process's health as the test sets it."""

    live: bool = True
    ready: bool = True
    problems: dict[str, Any] = field(default_factory=dict)
    detail: dict[str, Any] = field(default_factory=dict)


async def _send(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    await writer.drain()
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return answer


async def _get(port: int, path: str, method: str = "GET") -> tuple[int, Any]:
    head, _, body = (await _send(port, f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())).partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head or method == "HEAD"
    return int(head.split(b" ")[1]), json.loads(body) if body else None


async def test_live_and_ready_when_all_is_well() -> None:
    async with HealthServer("127.0.0.1", 0, Fake) as server:
        assert await _get(server.port, "/live") == (200, {"live": True})
        assert await _get(server.port, "/ready") == (200, {"ready": True, "problems": {}})


async def test_readiness_names_the_destination_that_is_away_and_liveness_stays() -> None:
    """FAILURES row 17: readiness shows the destination that does not take messages, and since when."""
    away = {"destination shop.order": {"reason": "no leader", "since": "2026-01-01T00:00:00Z"}}
    health = Fake(ready=False, problems=away, detail={"lanes": 64})
    async with HealthServer("127.0.0.1", 0, lambda: health) as server:
        assert await _get(server.port, "/ready") == (503, {"ready": False, "problems": away})
        assert await _get(server.port, "/live") == (200, {"live": True})
        assert await _get(server.port, "/status?verbose=1") == (
            200,
            {"live": True, "ready": False, "problems": away, "detail": {"lanes": 64}},
        )
        health.live = False
        assert await _get(server.port, "/live") == (503, {"live": False})


async def test_it_answers_while_the_process_works() -> None:
    """Other tasks of the loop run in between; nothing of the answer waits for them to end."""
    working = asyncio.Event()

    async def work() -> None:
        while not working.is_set():
            await asyncio.sleep(0)

    task = asyncio.create_task(work())
    async with HealthServer("127.0.0.1", 0, Fake) as server:
        assert [status for status, _ in [await _get(server.port, "/live") for _ in range(20)]] == [200] * 20
    working.set()
    await task


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /nowhere HTTP/1.1\r\n\r\n", 404),
        (b"GET /live HTTP/1.1\r\nA: b\r\n\r\n", 200),
        (b"POST /live HTTP/1.1\r\n\r\n", 405),
        (b"DELETE /live HTTP/1.0\r\n\r\n", 405),
        (b"GET\r\n\r\n", 400),
        (b"GET /live SMTP\r\n\r\n", 400),
        (b"GET live HTTP/1.1\r\n\r\n", 400),
        (b"\xff\xfe\x00 / HTTP/1.1\r\n\r\n", 405),
        (b"GET /live HTTP/1.1\r\nA: " + b"x" * 20_000 + b"\r\n\r\n", 431),
    ],
)
async def test_bad_requests_get_their_status(request_bytes: bytes, status: int) -> None:
    async with HealthServer("127.0.0.1", 0, Fake) as server:
        answer = await _send(server.port, request_bytes)
        assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer
        assert await _get(server.port, "/live") == (200, {"live": True}), "and the next one is served"


async def test_head_has_no_body() -> None:
    async with HealthServer("127.0.0.1", 0, Fake) as server:
        assert await _get(server.port, "/ready", "HEAD") == (200, None)


async def test_a_request_that_never_ends_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow peer keeps a connection for a bounded time; one that hangs up keeps none."""
    monkeypatch.setattr(health_module, "REQUEST_TIMEOUT_S", 0.1)
    async with HealthServer("127.0.0.1", 0, Fake) as server:
        assert await _send(server.port, b"GET /live HTT") == b""
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.transport.abort()
        assert await _get(server.port, "/live") == (200, {"live": True})


async def test_too_many_connections_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opens connections and says nothing does not use up the process's descriptors."""
    monkeypatch.setattr(health_module, "CONNECTIONS_MAX", 2)
    async with HealthServer("127.0.0.1", 0, Fake) as server:
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        reader, _ = await asyncio.open_connection("127.0.0.1", server.port)
        assert await asyncio.wait_for(reader.read(), 5) == b""
        for _, writer in silent:
            writer.close()
            await writer.wait_closed()


async def test_a_snapshot_that_fails_is_an_error_not_a_silence(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Fake:
        raise RuntimeError("no")

    async with HealthServer("127.0.0.1", 0, broken) as server:
        status, body = await _get(server.port, "/ready")
    assert status == 500 and "no" not in body["error"].split()
    assert "RuntimeError" in caplog.text


async def test_an_address_that_is_taken_is_a_clear_error() -> None:
    async with HealthServer("127.0.0.1", 0, Fake) as server:
        with pytest.raises(ConfigError, match=rf"cannot listen on 127.0.0.1:{server.port}"):
            await HealthServer("127.0.0.1", server.port, Fake).start()
