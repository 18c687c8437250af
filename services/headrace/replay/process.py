"""The replay buffer as a process: everything put together."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence

import grpc

from headrace.config.config import Config
from headrace.errors import HeadraceError, NotReadyError, UsageError, WriterFencedError
from headrace.log import get_logger
from headrace.replay.audit import balance_violations
from headrace.replay.buffer import ReplayBuffer
from headrace.replay.compactor import CompactionSettings, Compactor
from headrace.replay.deadlines import LeaseDeadlines
from headrace.replay.event_metrics import EventMetrics
from headrace.replay.journal.base import JOURNAL_AWAY, Journal, JournalDamagedError
from headrace.replay.journal.committer import CommitFailedError, Committer
from headrace.replay.journal.open import open_journal
from headrace.replay.ledger import Ledger
from headrace.replay.load import open_ledger
from headrace.replay.service.service import ReplayService
from headrace.replay.settings import LedgerSettings
from headrace.replay.state_metrics import StateMetrics
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
    process = Process.of_run(config, options)
    service = ReplayService(process.status)

    def add_services(server: grpc.aio.Server) -> Sequence[str]:
        add_ReplayBufferServiceServicer_to_server(service, server)
        return [replay_pb2.DESCRIPTOR.services_by_name["ReplayBufferService"].full_name]

    await process.start(add_services)
    try:
        journal, ledger = await asyncio.to_thread(_load, config, process)
        try:
            metrics = EventMetrics(process.registry)
            buffer = _make_buffer(config, process, journal, ledger, metrics)
            process.expose(StateMetrics(buffer, journal).read)
            service.open(buffer, journal)
            process.ready(
                lambda: all(wait.name != JOURNAL_AWAY for wait in process.waits.snapshot())
            )
            compactor = Compactor(buffer, journal, CompactionSettings.from_config(config))
            return await _serve(
                process, buffer, compactor, metrics, audit_every_s=config.ledger.audit_every_s
            )
        finally:
            await process.close()
            journal.close()
    except JournalDamagedError as error:
        raise UsageError(str(error)) from error
    except NotReadyError as error:
        log.warning("stopped_while_loading", error=str(error))
        return 0
    finally:
        await process.close()


def _load(config: Config, process: Process) -> tuple[Journal, Ledger]:
    """Open the journal and load the ledger. Blocks, and waits for Redis."""
    begun = time.monotonic()
    journal = open_journal(config, process.waits, process.stopping.is_set)
    settings = LedgerSettings.from_config(config)
    ledger = open_ledger(
        journal, settings, run_id=config.run.run_id, new_lineage=uuid.uuid4().hex[:6]
    )
    if journal.torn_bytes:
        log.warning("torn_tail_cut", bytes=journal.torn_bytes, position=ledger.position)
    log.info(
        "journal_loaded",
        position=ledger.position,
        base=journal.base.position if journal.base else 0,
        epoch=journal.writer_epoch,
        seconds=round(time.monotonic() - begun, 3),
    )
    return journal, ledger


def _make_buffer(
    config: Config, process: Process, journal: Journal, ledger: Ledger, metrics: EventMetrics
) -> ReplayBuffer:
    buffer = ReplayBuffer(
        ledger,
        LedgerSettings.from_config(config),
        Committer(
            journal,
            durable_position=journal.position,
            wall_clock=time.time,
            observe=metrics.appended,
        ),
        deadlines=LeaseDeadlines(clock=time.monotonic, lease_s=config.ledger.lease_s),
        workers=Workers(clock=time.monotonic, timeout_s=config.ledger.worker_timeout_s),
        stopping=process.stopping,
        observe=metrics.happened,
    )
    buffer.cut_keeps_settled = config.journal.keep_settled
    buffer.peers.run_dir = str(config.run.run_dir or "")
    buffer.peers.take(config.endpoints)
    buffer.take_up()
    return buffer


async def _serve(
    process: Process,
    buffer: ReplayBuffer,
    compactor: Compactor,
    metrics: EventMetrics,
    *,
    audit_every_s: float,
) -> int:
    """Run the committer and the clocks until the process is to stop."""
    committing = asyncio.create_task(buffer.committer.run())
    ticking = asyncio.create_task(_tick(buffer, compactor, metrics, audit_every_s))
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
        if ticking.done() and not ticking.cancelled():
            ticking.result()  # It ends by an error only, and that must not look like a stop.
    except CommitFailedError as error:
        fenced = isinstance(error.__cause__, WriterFencedError)
        event = "fenced" if fenced else "journal_failed"
        log.error(event, error=str(error))  # noqa: TRY400 (a line says it all)
        return 1
    return 0


async def _tick(
    buffer: ReplayBuffer, compactor: Compactor, metrics: EventMetrics, audit_every_s: float
) -> None:
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
                await _compact(compactor, metrics)


async def _compact(compactor: Compactor, metrics: EventMetrics) -> None:
    """Compact; what goes wrong with it is said, and tried again: the journal is whole without."""
    begun = time.monotonic()
    try:
        position = await compactor.compact()
    except (OSError, HeadraceError) as error:
        metrics.compaction_failed()
        log.warning("not_compacted", error=str(error))
    else:
        seconds = time.monotonic() - begun
        metrics.compacted(seconds)
        log.info("compacted", position=position, seconds=round(seconds, 3))
