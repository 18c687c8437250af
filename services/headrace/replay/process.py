"""The replay buffer as a process: everything put together."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence

import grpc

from headrace.config.config import Config
from headrace.config.rundir import RunDirectory
from headrace.errors import HeadraceError, UsageError, WriterFencedError
from headrace.log import get_logger
from headrace.replay.audit import balance_violations
from headrace.replay.buffer import ReplayBuffer
from headrace.replay.compactor import CompactionSettings, Compactor
from headrace.replay.deadlines import LeaseDeadlines
from headrace.replay.journal.base import JournalDamagedError
from headrace.replay.journal.committer import CommitFailedError, Committer
from headrace.replay.journal.file import FileJournal
from headrace.replay.load import open_ledger
from headrace.replay.service.service import ReplayService
from headrace.replay.settings import LedgerSettings
from headrace.replay.workers import Workers
from headrace.rpc.process import Process, ProcessOptions
from headrace.v1 import replay_pb2
from headrace.v1.replay_pb2_grpc import add_ReplayBufferServiceServicer_to_server

log = get_logger()


async def run(config: Config, options: ProcessOptions) -> int:
    """Serve the run's ledger until stopped.

    Returns:
        The exit code: 0, or 1 if the journal failed or a newer replay buffer took over.

    Raises:
        UsageError: the journal cannot be used, or the configuration is not the run's.

    """
    assert config.run.run_dir
    settings = LedgerSettings.from_config(config)
    directory = RunDirectory(config.run.run_dir).journal
    try:
        journal = FileJournal(
            directory,
            fsync=config.journal.fsync == "always",
            segment_events=config.journal.compact_every,
        )
        ledger = open_ledger(
            journal, settings, run_id=config.run.run_id, new_lineage=uuid.uuid4().hex[:6]
        )
    except JournalDamagedError as error:
        raise UsageError(str(error)) from error
    if journal.torn_bytes:
        log.warning("torn_tail_cut", bytes=journal.torn_bytes, position=ledger.position)
    process = Process(
        name=options.name,
        run_id=config.run.run_id,
        host=config.endpoints.bind_host,
        port=options.port,
        announce=options.announce,
        stall_after_s=config.watchdog.stall_after_s,
    )
    committer = Committer(journal, durable_position=journal.position, wall_clock=time.time)
    buffer = ReplayBuffer(
        ledger,
        settings,
        committer,
        deadlines=LeaseDeadlines(clock=time.monotonic, lease_s=config.ledger.lease_s),
        workers=Workers(clock=time.monotonic, timeout_s=config.ledger.worker_timeout_s),
        stopping=process.stopping,
    )
    buffer.commit()

    def add_services(server: grpc.aio.Server) -> Sequence[str]:
        service = ReplayService(buffer, journal, process.status)
        add_ReplayBufferServiceServicer_to_server(service, server)
        return [replay_pb2.DESCRIPTOR.services_by_name["ReplayBufferService"].full_name]

    await process.start(add_services)
    log.info("journal_loaded", position=ledger.position, epoch=journal.writer_epoch)
    process.ready()
    compactor = Compactor(
        buffer,
        journal,
        CompactionSettings(
            every_events=config.journal.compact_every,
            keep_settled=config.journal.keep_settled,
            keep_events=config.journal.keep_events,
        ),
    )
    try:
        return await _serve(process, buffer, compactor, audit_every_s=config.ledger.audit_every_s)
    finally:
        await process.close()
        journal.close()


async def _serve(
    process: Process, buffer: ReplayBuffer, compactor: Compactor, *, audit_every_s: float
) -> int:
    """Run the committer and the clocks until the process is to stop."""
    committing = asyncio.create_task(buffer.committer.run())
    ticking = asyncio.create_task(_tick(buffer, compactor, audit_every_s))
    stopped = asyncio.create_task(process.until_stopped())
    tasks = (committing, ticking, stopped)
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    ticking.cancel()
    stopped.cancel()
    if not committing.done():
        buffer.wake()
        await process.close()
        buffer.committer.stop()
    try:
        await committing
    except CommitFailedError as error:
        fenced = isinstance(error.__cause__, WriterFencedError)
        event = "fenced" if fenced else "journal_failed"
        log.error(event, error=str(error))  # noqa: TRY400 (a line says it all)
        return 1
    return 0


async def _tick(buffer: ReplayBuffer, compactor: Compactor, audit_every_s: float) -> None:
    """Expire leases, check the balance rule, and keep the journal short."""
    lease_tick_s = min(1.0, buffer.deadlines.lease_s / 10)
    next_audit = 0.0
    while True:
        await asyncio.sleep(lease_tick_s)
        expired = buffer.expire_leases()
        if expired:
            log.warning("leases_expired", count=len(expired), uids=expired[:10])
        next_audit -= lease_tick_s
        if next_audit <= 0:
            next_audit = audit_every_s
            broken = balance_violations(buffer.ledger)
            if broken:
                log.error("balance_broken", violations=broken)
            if compactor.is_due:
                await _compact(compactor)


async def _compact(compactor: Compactor) -> None:
    """Compact; what goes wrong with it is said, and tried again: the journal is whole without."""
    begun = time.monotonic()
    try:
        position = await compactor.compact()
    except (OSError, HeadraceError) as error:
        log.warning("not_compacted", error=str(error))
    else:
        log.info("compacted", position=position, seconds=round(time.monotonic() - begun, 3))
