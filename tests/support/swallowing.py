"""A proxy in front of PostgreSQL that loses the answer to a COMMIT, or the COMMIT itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit


class SwallowingProxy:
    """A TCP proxy in front of PostgreSQL which, once armed, lets one COMMIT through and cuts the line before the answer
    comes back: the client cannot know whether it was committed."""

    def __init__(self, url: str, *, deliver: bool) -> None:
        self.parts = urlsplit(url)
        self.deliver = deliver
        self.armed = False
        self.cut = 0

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._client, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            yield self.parts._replace(netloc=f"{self.parts.username}@127.0.0.1:{port}").geturl()
        finally:
            server.close()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(self.parts.hostname, self.parts.port)
        silent, answered = asyncio.Event(), asyncio.Event()

        async def up() -> None:
            while data := await reader.read(65536):
                if self.armed and b"commit" in data.lower():
                    self.armed = False
                    silent.set()
                    if self.deliver:
                        up_writer.write(data)
                        await up_writer.drain()
                        await answered.wait()
                    self.cut += 1
                    writer.transport.abort()
                    return
                up_writer.write(data)
                await up_writer.drain()

        async def down() -> None:
            while data := await up_reader.read(65536):
                if silent.is_set():
                    answered.set()  # and nobody will see it
                    return
                writer.write(data)
                await writer.drain()

        tasks = [asyncio.create_task(up()), asyncio.create_task(down())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if silent.is_set():
                await asyncio.wait([tasks[0]])
        except ConnectionError:
            pass
        finally:
            for task in tasks:
                task.cancel()
            up_writer.close()
            writer.close()
