"""The launcher and its supervisor, with real and very small child processes."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from small_children import Run

from headrace.cli.death import cause_of
from headrace.cli.ending import Ending
from headrace.cli.keeper import Part, Ports
from headrace.cli.launcher import Command
from headrace.cli.lives import RestartBudget
from headrace.cli.logtail import LogTail
from headrace.cli.standing import Standing
from headrace.config.services import LauncherConfig


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not happened():  # noqa: ASYNC110 - other processes write files, they set no events
            await asyncio.sleep(0.02)


def gone(pid: int, within_s: float = 10) -> bool:
    """Wait until a process that is not our child has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], within_s)[0])
    finally:
        os.close(handle)


async def test_a_process_starts_when_the_addresses_it_needs_are_known(run: Run) -> None:
    ending = await run.ending(
        run.part("trainer", "exit0", needs=("store", "replay"), is_main=True),
        run.part("store", "serve", needs=("replay",)),
        run.part("replay", "serve"),
    )

    assert ending == Ending(0)
    started = [line for line in run.history() if "started" in line]
    assert [line.split()[0] for line in started] == ["replay", "store", "trainer"]
    assert started[2].count("127.0.0.1:") == 2


def announced(run: Run, name: str) -> dict[str, Any]:
    file = run.folder / f"{name}.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found


async def test_a_killed_process_comes_back_on_the_same_ports(run: Run) -> None:
    supervisor = run.supervisor(run.part("replay", "serve"))
    supervisor.start()
    await asyncio.wait_for(supervisor.addresses.known(["replay"]), 20)
    first = supervisor.addresses.all["replay"]
    os.kill(announced(run, "replay")["pid"], signal.SIGKILL)
    await until(lambda: run.history().count("replay started") == 2)
    await until(lambda: bool(announced(run, "replay")))
    again = announced(run, "replay")
    await supervisor.stop(supervisor.names)

    assert supervisor.addresses.all["replay"] == first
    # A small child that is given no ports makes both of its process id.
    port = int(first.rpartition(":")[2])
    assert again["metrics"] == f"127.0.0.1:{port + 1000}"
    assert supervisor.restarts == {"replay": 1}
    assert supervisor.deaths == {"replay": "died (killed by SIGKILL)"}
    assert run.reports == ["replay died (killed by SIGKILL); started again after 0.1 s"]


async def test_a_process_that_keeps_dying_ends_the_run_with_its_last_words(run: Run) -> None:
    ending = await run.ending(
        run.part("store", "exit3"), run.part("trainer", "serve", is_main=True)
    )

    assert ending.exit_code == 6
    assert ending.reasons[0].startswith("store died (exit code 3), and launcher.max_restarts = 2")
    assert ending.log_lines[-1] == "the last words"
    assert run.history().count("store started") == 3


async def test_a_usage_error_at_the_first_start_ends_the_run_with_its_message(run: Run) -> None:
    ending = await run.ending(run.part("feeder", "wrong"), run.part("replay", "serve"))

    assert (ending.exit_code, ending.reasons) == (2, ("no such data set",))
    assert run.history().count("feeder started") == 1


async def test_a_usage_error_found_after_the_announcement_ends_the_run_too(run: Run) -> None:
    ending = await run.ending(run.part("worker-0", "exit2"))

    assert (ending.exit_code, ending.reasons) == (2, ("worker-0 died (exit code 2)",))
    assert ending.log_lines == ("the last words",)


async def test_the_trainers_usage_error_is_passed_on(run: Run) -> None:
    ending = await run.ending(run.part("trainer", "wrong", is_main=True))

    assert (ending.exit_code, ending.reasons) == (2, ("no such data set",))


async def test_a_trainer_that_cannot_resume_is_not_started_again(run: Run) -> None:
    ending = await run.ending(run.part("trainer", "exit1", is_main=True))

    assert (ending.exit_code, ending.reasons) == (4, ("trainer died (exit code 1)",))
    assert run.history() == ["trainer started"]


class Ledger:
    """What the ledger would say of the run, each time that it is asked."""

    def __init__(self, *standings: Standing) -> None:
        self._standings = list(standings)

    async def __call__(self) -> Standing:
        return self._standings.pop(0) if len(self._standings) > 1 else self._standings[0]


def at(step: int, *, gained: bool = True, ended: bool = False) -> Standing:
    return Standing(ended=ended, committed_step=step, gained=gained)


async def test_a_killed_trainer_is_started_again_and_its_end_is_the_runs(run: Run) -> None:
    supervisor = run.supervisor(
        run.part("trainer", "once", is_main=True, resumes=True), standing=Ledger(at(5))
    )
    supervisor.start()
    await until(lambda: run.history().count("trainer started") == 2)
    await until(lambda: bool(announced(run, "trainer")))

    assert run.reports == ["trainer died (killed by SIGKILL); started again after 0.1 s"]
    os.kill(announced(run, "trainer")["pid"], signal.SIGTERM)
    assert await asyncio.wait_for(supervisor.over(), 20) == Ending(0)
    await supervisor.stop(supervisor.names)


async def test_a_trainer_that_crashes_without_committing_anything_ends_the_run(run: Run) -> None:
    ending = await run.ending(
        run.part("trainer", "exit1", is_main=True, resumes=True),
        settings=LauncherConfig(max_restarts=10),
        standing=Ledger(at(5, gained=False)),
    )

    why = "trainer died (exit code 1), 3 crashes in a row without a step committed in between"
    assert (ending.exit_code, ending.reasons) == (4, (why,))
    assert ending.log_lines[-1] == "the last words"
    assert run.history().count("trainer started") == 3


async def test_a_trainer_that_never_comes_beyond_a_step_ends_the_run(run: Run) -> None:
    ending = await run.ending(
        run.part("trainer", "exit1", is_main=True, resumes=True),
        settings=LauncherConfig(max_restarts=4),
        standing=Ledger(at(5), at(7), at(6), at(7)),
    )

    assert ending.exit_code == 4
    assert ending.reasons[0].endswith(
        "5 deaths in a row without coming beyond step 7, and launcher.max_restarts = 4"
    )
    assert run.history().count("trainer started") == 6, "5, 7, 6, 7, 7, 7"


@pytest.mark.parametrize(
    ("code", "says"), [(3, "trainer died"), (4, "trainer died"), (130, "told")]
)
async def test_a_trainer_that_says_why_it_cannot_go_on_is_believed(
    run: Run, code: int, says: str
) -> None:
    ending = await run.ending(run.part("trainer", f"exit{code}", is_main=True, resumes=True))

    assert ending.exit_code == code
    assert says in ending.reasons[0]
    assert run.history() == ["trainer started"]


async def test_who_went_home_as_the_run_was_over_comes_when_it_is_not(run: Run) -> None:
    supervisor = run.supervisor(
        run.part("worker-0", "exit0", may_leave=True), standing=Ledger(at(9, ended=True))
    )
    supervisor.start()
    await until(lambda: run.reports == ["worker-0 went home"])
    await until(lambda: supervisor.kept == frozenset())

    supervisor.call_back()

    await until(lambda: run.history().count("worker-0 started") == 2)
    assert run.reports[1] == "worker-0 is called back: the run goes on"
    await supervisor.stop(supervisor.names)
    assert supervisor.restarts == {}


async def test_who_was_sent_home_while_the_run_is_on_is_not_called_back(run: Run) -> None:
    supervisor = run.supervisor(
        run.part("worker-0", "exit0", may_leave=True),
        run.part("worker-1", "exit0", may_leave=True),
        standing=Ledger(at(9)),
    )
    supervisor.start()
    await until(lambda: len(run.reports) == 2 and supervisor.kept == frozenset())

    supervisor.call_back()
    await supervisor.stop(supervisor.names)

    assert len(run.history()) == 2


async def test_a_trainer_gets_the_time_to_save_if_it_is_to(run: Run) -> None:
    settings = LauncherConfig(stop_grace_s=0.1)
    supervisor = run.supervisor(
        run.part("trainer", "saves", is_main=True, saving_s=20), settings=settings
    )
    supervisor.start()
    await asyncio.wait_for(supervisor.addresses.known(["trainer"]), 20)

    await supervisor.stop(["trainer"], saving=True)

    assert run.history()[-1] == "trainer saved"


async def test_a_worker_that_was_sent_home_stays_there(run: Run) -> None:
    supervisor = run.supervisor(run.part("worker-0", "exit0", may_leave=True))
    supervisor.start()
    await until(lambda: bool(run.reports))
    await supervisor.stop(supervisor.names)

    assert run.reports == ["worker-0 went home"]
    assert supervisor.restarts == {}


async def test_who_is_gone_for_good_is_announced_no_more(run: Run) -> None:
    supervisor = run.supervisor(
        run.part("worker-0", "home", may_leave=True), run.part("replay", "serve")
    )
    supervisor.start()
    await asyncio.wait_for(supervisor.addresses.known(["worker-0", "replay"]), 20)
    await until(lambda: bool(run.reports))
    await until(lambda: not announced(run, "worker-0"))
    assert announced(run, "replay")["address"] == supervisor.addresses.all["replay"]

    await supervisor.stop(supervisor.names)

    assert not announced(run, "replay")


async def test_a_death_is_told_with_what_the_process_said_of_it(run: Run) -> None:
    supervisor = run.supervisor(run.part("store", "raises"))
    supervisor.start()
    await until(lambda: bool(run.reports))
    await supervisor.stop(supervisor.names)

    died = "died (exit code 1): OSError: [Errno 28] No space left on device"
    assert run.reports[0] == f"store {died}; started again after 0.1 s"
    assert supervisor.deaths == {"store": died}


def test_a_full_disk_is_the_cause_when_nothing_can_be_logged(tmp_path: Path) -> None:
    log = LogTail(tmp_path / "store.log")
    log.path.write_text("error: an older one\n")

    assert cause_of(log, free=lambda _folder: 4096) == f"the disk of {tmp_path} is full"
    assert cause_of(log) == "an older one"
    assert cause_of(LogTail(tmp_path / "gone" / "store.log")) == (
        f"{tmp_path}/gone: No such file or directory"
    )


async def test_a_process_that_never_announces_itself_is_given_up(run: Run) -> None:
    settings = LauncherConfig(max_restarts=0, start_timeout_s=0.5)

    ending = await run.ending(run.part("store", "silent"), settings=settings)

    assert ending.exit_code == 6
    assert "did not announce its address within 0.5 s" in ending.reasons[0]


async def test_processes_are_stopped_in_the_order_asked_for(run: Run) -> None:
    names = ["replay", "store", "feeder"]
    supervisor = run.supervisor(*(run.part(name, "serve") for name in names))
    supervisor.start()
    await asyncio.wait_for(supervisor.addresses.known(names), 20)

    for name in ["feeder", "store", "replay"]:
        await supervisor.stop([name])

    assert run.history()[3:] == ["feeder stopped", "store stopped", "replay stopped"]


async def test_a_process_that_does_not_stop_in_time_is_killed(run: Run) -> None:
    settings = LauncherConfig(stop_grace_s=0.2)
    supervisor = run.supervisor(run.part("store", "stubborn"), settings=settings)
    supervisor.start()
    await asyncio.wait_for(supervisor.addresses.known(["store"]), 20)
    pid = json.loads((run.folder / "store.json").read_text())["pid"]

    await asyncio.wait_for(supervisor.stop(["store"]), 10)

    assert gone(pid)


async def test_killing_all_does_not_wait_for_anybody(run: Run) -> None:
    settings = LauncherConfig(stop_grace_s=600)
    supervisor = run.supervisor(run.part("store", "stubborn"), settings=settings)
    supervisor.start()
    await asyncio.wait_for(supervisor.addresses.known(["store"]), 20)
    stopping = asyncio.create_task(supervisor.stop(["store"]))

    supervisor.kill()

    await asyncio.wait_for(stopping, 10)


async def test_a_program_that_cannot_be_started_is_not_waited_for(run: Run) -> None:
    def command(_addresses: Mapping[str, str], _ports: Ports) -> Command:
        return Command("store", ["/no/such/program"], run.folder / "l", run.folder / "a")

    with pytest.raises(FileNotFoundError):
        await run.ending(Part("store", command))


LAUNCHER = """
import asyncio, sys
from pathlib import Path
from headrace.cli.launcher import Child, Command

CHILD = '''
import subprocess, sys
from pathlib import Path
from headrace.cli.parent import die_with_parent
die_with_parent()
own = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
print(own.pid, flush=True)
own.wait()
'''

async def main():
    folder = Path(sys.argv[1])
    command = Command("c", [sys.executable, "-c", CHILD], folder / "log", folder / "c.json")
    child = await Child.start(command)
    print(child.pid, flush=True)
    await child.ended()

asyncio.run(main())
"""


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def test_children_and_what_they_started_do_not_survive_a_killed_launcher(
    launcher: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert launcher.stdout is not None
    child = int(launcher.stdout.readline())
    log = tmp_path / "log"
    deadline = time.monotonic() + 20
    while not log.read_text().strip() and time.monotonic() < deadline:
        time.sleep(0.02)
    grandchild = int(log.read_text())

    launcher.send_signal(signal.SIGKILL)

    assert gone(child)
    assert gone(grandchild)


def test_restarts_are_counted_within_a_window_and_each_pause_is_longer() -> None:
    budget = RestartBudget(LauncherConfig(max_restarts=3, restart_window_s=100))

    assert [budget.spend(float(now)) for now in (0, 1, 2, 3)] == [0.1, 0.2, 0.4, None]
    assert budget.spend(101.5) == 0.2, "only the one at 2 still counts"


def test_no_pause_is_longer_than_five_seconds() -> None:
    budget = RestartBudget(LauncherConfig(max_restarts=50, restart_window_s=100))

    pauses = list(itertools.islice((budget.spend(0.0) for _ in itertools.count()), 20))

    assert pauses[-1] == 5.0
