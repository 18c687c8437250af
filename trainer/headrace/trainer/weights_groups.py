"""Groups over which weights go straight into the workers' engines, one for each worker.

    open ─► joining ─► ready ◄─► sending
               └─────────┴──────────┴─► ended: closed, replaced, failed, too late, not used

Each has a process that sends. Whatever goes wrong ends it, and with it the group; the worker hears
of it when it next asks, or gives up by its own deadline. Knows nothing of gRPC and NCCL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from headrace.errors import WeightsGroupError
from headrace.log import get_logger
from headrace.trainer.sender_process import SenderError, SenderProcess

IDLE_S: Final = 900.0
"""A group that is not used for so long belongs to a worker that is gone, most likely."""

log = get_logger()


class Group:
    """One worker's group.

    At most one act is under way: joining, or sending a version. It has a deadline.
    """

    def __init__(
        self,
        worker_id: str,
        process: SenderProcess,
        *,
        timeout_s: float,
        idle_s: float,
        forget: Callable[[Group], None],
    ) -> None:
        self.id = uuid4().hex
        self.worker_id = worker_id
        self._process = process
        self._timeout_s = timeout_s
        self._idle_s = idle_s
        self._forget = forget
        self._act: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._expiry: asyncio.Task[None] | None = None
        self._why_ended = ""

    async def open(self, device: str, receiver_count: int) -> dict[str, Any]:
        """Begin to join, and return what the others need for that."""
        order = {"device": device, "receiver_count": receiver_count}
        return await self._begin(order, "unique_id", "joined")

    async def send(self, version: Path) -> None:
        """Wait until all have joined, and begin to send."""
        if self._act is not None and self._act.get_name() == "sent" and not self._act.done():
            await self.end("was asked for weights while some were on their way")
        if self._act is not None:
            await asyncio.wait([self._act])
        if self._why_ended:
            raise self._error()
        await self._begin({"send": str(version)}, "sending", "sent")

    async def _begin(self, order: dict[str, Any], first: str, last: str) -> dict[str, Any]:
        """Begin an act, and return the first answer; the last one ends it."""
        answered: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._act = asyncio.create_task(self._carry_out(order, first, last, answered), name=last)
        try:
            return await answered
        except asyncio.CancelledError:
            await self.end("nobody waits for it any more")
            raise

    async def _carry_out(
        self,
        order: dict[str, Any],
        first: str,
        last: str,
        answered: asyncio.Future[dict[str, Any]],
    ) -> None:
        self._rest(None)
        try:
            async with asyncio.timeout(self._timeout_s):
                self._process.order(**order)
                answer = await self._process.answer(first)
                if not answered.done():
                    answered.set_result(answer)
                await self._process.answer(last)
            self._rest(self._idle_s)
        except TimeoutError:
            await self.end(f"was not {last} within weights.nccl_timeout_s = {self._timeout_s:g} s")
        except SenderError as error:
            await self.end(str(error))
        finally:
            if not answered.done():
                answered.set_exception(self._error())

    def _rest(self, idle_s: float | None) -> None:
        """End the group unless it is used again within this time."""
        if self._idle is not None:
            self._idle.cancel()
        if idle_s is not None:
            self._idle = asyncio.get_running_loop().call_later(idle_s, self._expire)

    def _expire(self) -> None:
        self._expiry = asyncio.create_task(self.end("was not used"), name="weights group expiry")

    async def end(self, why: str) -> None:
        """End it, whatever it does. Safe to repeat."""
        if not self._why_ended:
            self._why_ended = why
            self._forget(self)
            log.info("weights_group_ended", worker=self.worker_id, group=self.id, why=why)
        self._rest(None)
        if self._act is not None and self._act is not asyncio.current_task():
            self._act.cancel()
        await self._process.end()

    def _error(self) -> WeightsGroupError:
        return WeightsGroupError(f"weights cannot be sent to {self.worker_id}: {self._why_ended}")


class WeightsGroups:
    """The groups there are.

    Args:
        device: the GPU that is sent from, as torch calls it.
        timeout_s: how long joining may take, and sending a version.
        start: starts a process that sends.
        idle_s: a group that is not used for so long is ended.

    """

    def __init__(
        self,
        device: str,
        *,
        timeout_s: float,
        start: Callable[[], Awaitable[SenderProcess]] = SenderProcess.start,
        idle_s: float = IDLE_S,
    ) -> None:
        self._device = device
        self._timeout_s = timeout_s
        self._start = start
        self._idle_s = idle_s
        self._groups: dict[str, Group] = {}
        """By worker."""

    def __iter__(self) -> Iterator[Group]:
        """Give those that there are."""
        return iter(list(self._groups.values()))

    async def open(self, worker_id: str, receiver_count: int) -> tuple[str, dict[str, Any]]:
        """Open a group; return its name and, when it can be joined, how. Ends the worker's last.

        Raises:
            WeightsGroupError: it cannot be opened here.

        """
        old = self._groups.get(worker_id)
        if old is not None:
            await old.end("was replaced by another one")
        try:
            process = await self._start()
        except SenderError as error:
            raise WeightsGroupError(str(error)) from error
        # From here on the group has the process: whoever gives up waiting ends it, too.
        group = self._groups[worker_id] = Group(
            worker_id,
            process,
            timeout_s=self._timeout_s,
            idle_s=self._idle_s,
            forget=self._forget,
        )
        invitation = await group.open(self._device, receiver_count)
        log.info("weights_group_opened", worker=worker_id, group=group.id)
        return group.id, invitation

    async def send(self, group_id: str, version: Path) -> None:
        """Have a version sent to a group, and wait until that begins.

        Raises:
            WeightsGroupError: the group is ended.

        """
        group = self._find(group_id)
        if group is None:
            raise WeightsGroupError(
                "this group is not there any more: it failed, was replaced, was not used, or "
                "belonged to another life of the trainer"
            )
        await group.send(version)

    async def close_group(self, group_id: str) -> None:
        """End a group. One that is not there is ended."""
        group = self._find(group_id)
        if group is not None:
            await group.end("was closed")

    async def close(self) -> None:
        """End all."""
        for group in self:
            await group.end("the trainer ends")

    def _find(self, group_id: str) -> Group | None:
        return next((each for each in self if each.id == group_id), None)

    def _forget(self, group: Group) -> None:
        if self._groups.get(group.worker_id) is group:
            del self._groups[group.worker_id]
