"""A real HTTP server that plays a reward service, and does what a test tells it to."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class Reply:
    """One answer."""

    status: int = 200
    body: Any = None
    """JSON, or bytes as they are; None = a reward for each item: the length of its response."""
    headers: tuple[str, ...] = ()
    hangs: bool = False
    """Never answers."""
    hangs_up: bool = False
    """Closes the connection instead."""


class Judge:
    """Remembers every call. Replies are taken from `replies`, then from `reply`."""

    def __init__(self) -> None:
        self.calls: list[list[dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.replies: deque[Reply] = deque()
        self.reply: Callable[[list[dict[str, Any]]], Reply] = lambda items: Reply()
        self.gate = asyncio.Event()
        """Calls are answered while it is set."""
        self.gate.set()
        self.called = asyncio.Event()
        self.hung: Callable[[], None] = lambda: None
        """Told of each call that is not going to be answered."""
        self.at_once = 0
        """Calls under way."""
        self.most_at_once = 0
        self.url = ""
        self._connections: list[asyncio.Task[None]] = []

    @property
    def responses(self) -> list[list[str]]:
        """What was to be scored, by call."""
        return [[item["response"] for item in call] for call in self.calls]

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection for as long as `judging` lasts."""
        task = asyncio.create_task(self._serve(reader, writer))
        task.add_done_callback(lambda _: writer.close())
        self._connections.append(task)

    async def hang_up(self) -> None:
        for task in self._connections:
            task.cancel()
        for ended in await asyncio.gather(*self._connections, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client went away

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        assert head[0] == "POST /score HTTP/1.1"
        pairs = (line.split(": ", 1) for line in head[1:] if line)
        headers = {name.lower(): value for name, value in pairs}
        items = json.loads(await reader.readexactly(int(headers["content-length"])))
        self.calls.append(items)
        self.headers.append(headers)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.called.set()
        try:
            await self.gate.wait()
            reply = self.replies.popleft() if self.replies else self.reply(items)
            if reply.hangs:
                self.hung()
                await asyncio.Event().wait()
            if reply.hangs_up:
                return False
        finally:
            self.at_once -= 1
        body = reply.body
        if body is None:
            body = [len(item["response"]) for item in items]
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"HTTP/1.1 {reply.status} Said", f"Content-Length: {len(data)}", *reply.headers]
        writer.write("\r\n".join([*lines, "", ""]).encode() + data)
        await writer.drain()
        return True


@asynccontextmanager
async def judging(
    *, port: int = 0, ssl: Any = None, judge: Judge | None = None
) -> AsyncIterator[Judge]:
    """Serve on loopback."""
    judge = judge or Judge()
    server = await asyncio.start_server(judge.accept, "127.0.0.1", port, ssl=ssl)
    port = server.sockets[0].getsockname()[1]
    judge.url = f"{'https' if ssl else 'http'}://127.0.0.1:{port}/score"
    try:
        yield judge
    finally:
        server.close()
        await judge.hang_up()
