"""Brings published weights into one server: checked there, loaded there, in one worker's turn.

    check the files ─► take the turn ─► pause ─► start, update, finish ─► resume ─► end the turn

Checking goes on beside generation. While one worker has the turn, others wait, and find that the
server has what they wanted. Every step may be repeated; a worker that dies in the middle leaves
its turn to the next, who begins anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from headrace.rollout.engines.base import EngineError
from headrace.rollout.engines.vllm_server.calls import Calls, ServerAnsweredError, ServerAwayError
from headrace.rollout.engines.vllm_server.tag import Tag
from headrace.rollout.engines.vllm_server.wire import MalformedError
from headrace.v1 import prompt_pb2

_POLL_S: Final = 0.1
_LET_GO_S: Final = 10.0
"""How long it may take to leave a server to others after an update; what is not done then they do
themselves, later."""


class WeightsRefusedError(EngineError):
    """The server did not take the weights, and has those that it had."""


class Sync:
    """Updates of one server.

    Args:
        calls: The server.
        owner: This worker's name, new with each life.
        drains: Whether responses under way are finished by the old weights.
        drain_s: How long that may take.
        update_s: How long anything else may take. While the server loads, whoever brought it
            that, it answers nothing.
        sleep: How time passes.

    """

    def __init__(
        self,
        calls: Calls,
        *,
        owner: str,
        drains: bool,
        drain_s: float,
        update_s: float,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._calls = calls
        self._owner = owner
        self._drains = drains
        self._drain_s = drain_s
        self._update_s = update_s
        self._sleep = sleep

    async def loaded(self) -> Tag | None:
        """Ask which weights the server has; None if none of ours, or half of them.

        What it calls them must be what each of its processes has loaded.
        """
        info = await self._calls.get("/weight_info", timeout_s=self._update_s)
        label = str(_field(info, "weight_version"))
        found = await self._rpc("headrace_weights")
        return Tag.parse(label) if {str(_field(each, "tag")) for each in found} == {label} else None

    async def bring(self, published: prompt_pb2.PublishedWeights) -> None:
        """See that the server has these weights.

        Raises:
            ServerAwayError: It does not answer.
            WeightsRefusedError: It has other weights, as before.
            EngineError: It has none that can be used, until others are brought.

        """
        wanted = Tag.of(published)
        if await self._has(wanted) and not await self.is_paused():
            return
        await self._check(published)
        async with self._turn():
            if not await self._has(wanted):
                await self._update(wanted)
            elif await self.is_paused():
                await self._post("/resume")  # whoever did it is gone: it is our turn

    async def is_paused(self) -> bool:
        """Ask whether it generates nothing for the time being, as weights are brought to it."""
        answer = await self._calls.get("/is_paused", timeout_s=self._update_s)
        return bool(_field(answer, "is_paused"))

    async def _has(self, wanted: Tag) -> bool:
        found = await self.loaded()
        if found is not None and found.is_after(wanted):
            raise WeightsRefusedError(
                f"{self._calls.host} has version {found.version} already, which another worker "
                f"brought; version {wanted.version} is not newer"
            )
        return found == wanted

    async def _check(self, published: prompt_pb2.PublishedWeights) -> None:
        """Have each process of the server read and check the files."""
        arguments = [
            published.uri,
            published.checksum,
            published.id.lineage,
            str(published.id.version),
        ]
        async with self._limit(self._update_s, "the check of the files"):
            while True:
                found = await self._rpc("headrace_check", *arguments)
                for each in found:
                    if _field(each, "state") == "wrong":
                        raise WeightsRefusedError(
                            f"{self._calls.host} refuses version {published.id.version}: "
                            f"{_field(each, 'why')}"
                        )
                if all(_field(each, "state") == "checked" for each in found):
                    return
                await self._sleep(_POLL_S)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Be the only one who updates this server. The turn is renewed."""
        renewing: asyncio.Task[None] | None = None
        try:
            async with self._limit(self._drain_s + self._update_s, "its turn"):
                while not await self._take():
                    await self._sleep(_POLL_S)
            renewing = asyncio.create_task(self._renew(), name="turn")
            yield
        finally:
            if renewing is not None:
                renewing.cancel()
                await asyncio.gather(renewing, return_exceptions=True)
            # Also of one that it may have got without knowing. If this fails it runs out by itself.
            with suppress(EngineError):
                async with self._limit(_LET_GO_S, "the end of its turn"):
                    await self._rpc("headrace_end_turn", self._owner)

    async def _take(self) -> bool:
        # Longer than the longest time in which the server can do nothing else than load.
        found = await self._rpc("headrace_take_turn", self._owner, str(self._update_s))
        owners = {str(_field(each, "owner")) for each in found}
        if owners == {self._owner}:
            return True
        if self._owner in owners:  # of some of its processes: let the other one have them all
            await self._rpc("headrace_end_turn", self._owner)
        return False

    async def _renew(self) -> None:
        while True:
            await self._sleep(self._update_s / 3)
            with suppress(EngineError):  # the next one may get through in time
                await self._rpc("headrace_renew_turn", self._owner, str(self._update_s))

    async def _update(self, wanted: Tag) -> None:
        mode = "wait" if self._drains else "keep"
        pause = self._drain_s if self._drains else self._update_s
        before = await self.loaded()
        try:
            await self._post("/pause", timeout_s=pause, mode=mode, clear_cache="true")
            await self._load(wanted)
        except BaseException:
            with suppress(EngineError):  # what went wrong first is told of
                async with self._limit(_LET_GO_S, "to go on"):
                    await self._go_on_with(before)
            raise
        await self._post("/resume")

    async def _go_on_with(self, before: Tag | None) -> None:
        """Set the server going again with what it had: with half of the weights it must not."""
        if before is not None and await self.loaded() == before:
            await self._post("/resume")

    async def _load(self, wanted: Tag) -> None:
        await self._post("/init_weight_transfer_engine", {"init_info": {}})
        await self._post("/start_weight_update")
        await self._post("/update_weights", {"update_info": {"tag": str(wanted)}})
        await self._post("/finish_weight_update", {"weight_version": str(wanted)})
        if await self.loaded() != wanted:
            raise EngineError(f"{self._calls.host} did not load version {wanted.version}")

    async def _post(
        self,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        **query: str,
    ) -> None:
        try:
            await self._calls.post(path, body, timeout_s=timeout_s or self._update_s, **query)
        except ServerAnsweredError as error:
            raise EngineError(str(error)) from error

    async def _rpc(self, method: str, *arguments: str) -> list[dict[str, str]]:
        body = {"method": method, "args": list(arguments)}
        answer = await self._calls.post("/collective_rpc", body, timeout_s=self._update_s)
        results = _field(answer, "results")
        if not isinstance(results, list) or not results:
            raise MalformedError("no process of the server has answered")
        return results

    @asynccontextmanager
    async def _limit(self, limit_s: float, what: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(limit_s):
                yield
        except TimeoutError as error:
            raise ServerAwayError(
                f"{self._calls.host}: {what} took more than {limit_s:g} s"
            ) from error


def _field(answer: Any, name: str) -> Any:
    try:
        return answer[name]
    except (KeyError, TypeError) as error:
        raise MalformedError(f"an answer without {name}: {str(answer)[:200]}") from error
