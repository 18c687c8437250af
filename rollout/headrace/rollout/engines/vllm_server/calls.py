"""Calls to one vLLM server: what it answers, or who is to blame.

Knows nothing of what the calls mean.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import httpx

from headrace.rollout.engines.base import EngineError, EngineLostError

_Result = TypeVar("_Result")

CONNECT_S: Final = 30.0
"""How long a connection may take to be opened. It counts the time in which this process does not
get to it, and hundreds are opened at once: a shorter limit blames servers for a busy machine. One
that is gone is found by a look, and each call but a stream has a limit of its own."""
KEEP_S: Final = 2.0
"""How long a connection that nobody uses is kept; vLLM closes it after 5 s by itself."""
LONGEST_QUOTE: Final = 300
"""Characters of an answer that an error quotes."""

_AWAY: Final = frozenset({429, 502, 503, 504})
"""Statuses that say nothing about the request."""


class ServerAwayError(EngineLostError):
    """Nobody is there, the connection broke, or there was no answer in time."""


class ServerAnsweredError(EngineError):
    """The server did not do what it was asked for.

    Attributes:
        status: Of its answer.

    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Calls:
    """The connections to one server.

    Args:
        url: Its base, with nothing behind host and port but perhaps a folder.
        certificates: What an https server is checked against.
        api_key: Sent with each call; empty = none.

    """

    def __init__(self, url: str, *, certificates: ssl.SSLContext, api_key: str) -> None:
        parts = urlsplit(url)
        self.host = parts.netloc.rpartition("@")[2]
        """The server's name in messages."""
        self._client = httpx.AsyncClient(
            base_url=url.rstrip("/"),
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            verify=certificates,
            timeout=httpx.Timeout(None, connect=CONNECT_S),
            limits=httpx.Limits(keepalive_expiry=KEEP_S),
        )

    async def close(self) -> None:
        """Break what is under way."""
        await self._client.aclose()

    async def get(self, path: str, *, timeout_s: float, **query: str) -> Any:
        """Ask for something; its JSON is returned.

        Raises:
            ServerAwayError: There is no answer.
            ServerAnsweredError: Another status than 2xx.

        """
        return self._read_json(await self._ask("GET", path, None, query, timeout_s), path)

    async def text(self, path: str, *, timeout_s: float) -> str:
        """Ask for something that is no JSON.

        Raises:
            ServerAwayError: There is no answer.
            ServerAnsweredError: Another status than 2xx.

        """
        return (await self._ask("GET", path, None, {}, timeout_s)).text

    async def post(
        self, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float, **query: str
    ) -> Any:
        """Have something done; the JSON of the answer is returned.

        Raises:
            ServerAwayError: There is no answer.
            ServerAnsweredError: Another status than 2xx.

        """
        return self._read_json(await self._ask("POST", path, body, query, timeout_s), path)

    @asynccontextmanager
    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[AsyncIterator[str]]:
        """Have something done, and give the lines of the answer as they come, however long it takes.

        Raises:
            ServerAwayError: The connection broke, also while lines are read.
            ServerAnsweredError: Another status than 2xx.

        """
        request = self._request("POST", path, body, {})
        answer = await self._send(request, path, stream=True)
        async with aclosing(answer):
            if not answer.is_success:
                await self._reading(answer.aread(), path)
                self._check(answer, path)
            yield self._lines(answer, path)

    async def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, str],
        timeout_s: float,
    ) -> httpx.Response:
        async with self._within(timeout_s, path):
            answer = await self._send_again(lambda: self._request(method, path, body, query), path)
        self._check(answer, path)
        return answer

    def _read_json(self, answer: httpx.Response, path: str) -> Any:
        try:
            return json.loads(answer.content) if answer.content else None
        except ValueError as error:
            raise ServerAnsweredError(
                f"{self.host}{path} answered what is no JSON: {_quote(answer)}", answer.status_code
            ) from error

    @asynccontextmanager
    async def _within(self, limit_s: float, path: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(limit_s):
                yield
        except TimeoutError as error:
            raise ServerAwayError(
                f"{self.host}{path} did not answer within {limit_s:g} s"
            ) from error

    def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, str],
    ) -> httpx.Request:
        return self._client.build_request(method, path, params=query or None, json=body)

    async def _send_again(self, make: Callable[[], httpx.Request], path: str) -> httpx.Response:
        """Send; if the connection breaks, once more by another.

        Servers close connections that nobody uses. None of these calls is harmed by being repeated.
        """
        try:
            return await self._client.send(make())
        except (httpx.NetworkError, httpx.RemoteProtocolError):
            return await self._send(make(), path, stream=False)
        except httpx.HTTPError as error:
            raise self._away(error, path) from error

    async def _send(self, request: httpx.Request, path: str, *, stream: bool) -> httpx.Response:
        return await self._reading(self._client.send(request, stream=stream), path)

    async def _reading(self, work: Awaitable[_Result], path: str) -> _Result:
        try:
            return await work
        except httpx.HTTPError as error:
            raise self._away(error, path) from error

    async def _lines(self, answer: httpx.Response, path: str) -> AsyncIterator[str]:
        try:
            async for line in answer.aiter_lines():
                yield line
        except httpx.HTTPError as error:
            raise self._away(error, path) from error

    def _check(self, answer: httpx.Response, path: str) -> None:
        if answer.is_success:
            return
        said = (
            f"{self.host}{path} answered {answer.status_code} {answer.reason_phrase}: "
            f"{_quote(answer)}"
        )
        if answer.status_code in _AWAY:
            raise ServerAwayError(said)
        raise ServerAnsweredError(said, answer.status_code)

    def _away(self, error: httpx.HTTPError, path: str) -> ServerAwayError:
        what = str(error) or "no answer"
        return ServerAwayError(f"{self.host}{path}: {type(error).__name__}: {what}")


def _quote(answer: httpx.Response) -> str:
    return " ".join(answer.text.split())[:LONGEST_QUOTE]
