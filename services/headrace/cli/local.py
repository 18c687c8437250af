"""A whole run on this machine, from the configuration file to the exit code."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.text import Text

from headrace.checkpoint.directory import storage_of
from headrace.cli.diary import LAUNCHER, Diary
from headrace.cli.display import Display
from headrace.cli.ending import BROKEN, DONE, INTERRUPTED, NO_CHECKPOINT, USAGE, Ending
from headrace.cli.extras import check_installed
from headrace.cli.fleet import parts, stop_order
from headrace.cli.live import LiveDisplay
from headrace.cli.past import Past
from headrace.cli.plain import PlainDisplay
from headrace.cli.preflight import preflight
from headrace.cli.rundirs import RunLock, forget_addresses, make_run_directory, write_config
from headrace.cli.session import Session
from headrace.cli.single import makes_checkpoints
from headrace.cli.summary import Summary
from headrace.client.words import dropped_in_words
from headrace.config.config import Config
from headrace.config.rundir import RunDirectory
from headrace.errors import HeadraceError
from headrace.v1 import replay_pb2


def run_here(path: Path, overrides: Sequence[str], *, plain: bool) -> int:
    """Run it; give the exit code.

    Raises:
        UsageError: something is wrong, found before anything was started.

    """
    checked = preflight(path, overrides)
    check_installed(checked.config)
    if checked.config.checkpoint.storage is not None:
        storage_of(checked.config).check_answers()
    console = Console(highlight=False, soft_wrap=True)
    for warning in checked.warnings:
        console.print(Text(f"warning: {warning}", style="yellow"))
    config, directory = make_run_directory(checked.config)
    with RunLock(directory):
        past = Past.of(directory, config)
        if past.finished:
            console.print(Text(past.finished_in_words()))
            return DONE
        past.check_can_go_on(config)
        write_config(config, directory)
        forget_addresses(directory)
        first = f"run directory {directory.path}"
        console.print(Text(past.going_on_in_words() if past.began else first))
        live = console.is_terminal and not plain
        diary = Diary(
            LiveDisplay(console) if live else PlainDisplay(sys.stdout),
            directory.log_file(LAUNCHER),
            run_id=config.run.run_id,
            clock=lambda: datetime.now(UTC),
        )
        ending, summary = asyncio.run(_session(config, past, diary))
        refused = was_refused(ending, summary)
        ending = unless_all_was_dropped(ending, summary.audit)
        diary.end(ending)
    if not refused:
        console.print(Text(), summary.text(), sep="\n", soft_wrap=True)
    for line in ending.reasons:
        console.print(Text(f"error: {line}", style="bold red"))
    for line in ending.log_lines:
        console.print(Text(f"  | {line}", style="dim"))
    if ending.exit_code == INTERRUPTED and makes_checkpoints(config):
        console.print(Text("the same command goes on with it"))
    broken = summary.audit is not None and not summary.audit.ok
    return BROKEN if ending.exit_code == DONE and broken else ending.exit_code


def was_refused(ending: Ending, summary: Summary) -> bool:
    """Whether nothing came of the start: then its error is all that there is to say."""
    refused = ending.exit_code in (USAGE, NO_CHECKPOINT) and not summary.own_steps
    return refused or summary.view.replay is None


def unless_all_was_dropped(ending: Ending, audit: replay_pb2.AuditResponse | None) -> Ending:
    """Take it for a mistake when a run is done and nothing of the data could be trained on."""
    if ending.exit_code != DONE or audit is None or not audit.ok or audit.counts.trained:
        return ending
    became = dropped_in_words(audit.counts) or "none"
    why = (
        f"the data set ended before there was one batch to train on; its prompts: {became}; "
        "`headrace prompts --state dropped` lists them (too_long: raise data.max_prompt_length)"
    )
    return Ending(USAGE, (why,))


async def _session(config: Config, past: Past, display: Display) -> tuple[Ending, Summary]:
    directory = past.directory
    session = Session(
        config,
        parts(config, directory, os.environ),
        stop_order(config),
        display,
        known_resume=past.last_resume,
        now=time.monotonic,
    )
    if past.began:
        session.view.steps.read(directory.metrics_file)
    ending, audit = await session.run()
    session.view.steps.read(directory.metrics_file)
    audit = audit or _audit_journal(config, directory)
    return ending, Summary(
        session.view,
        audit,
        directory,
        config.trainer.tensorboard,
        began_before=past.began,
        resumed=session.news.resumed,
    )


def _audit_journal(config: Config, directory: RunDirectory) -> replay_pb2.AuditResponse | None:
    """Do without the replay buffer, as when it was what died."""
    from headrace.replay.offline import open_ledger

    if not directory.journal.exists():
        return None
    try:
        return open_ledger(directory.journal, config).audit()
    except HeadraceError:  # a journal that cannot be read; the summary says that nobody could
        return None
