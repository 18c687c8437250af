"""Log lines are JSON on stderr, ours and those of other packages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = """
import logging
from headrace.log import configure, get_logger
log = get_logger()
configure("replay", "run-1")
log.debug("too_fine")
log.info("leased", count=3)
logging.getLogger("other").info("chatter")
logging.getLogger("other").warning("beware of %s", "this")
try:
    secret = "a local value"
    raise ValueError("why")
except ValueError:
    log.exception("failed")
    logging.getLogger("other").exception("failed, too")
"""


def lines() -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == ""
    return [json.loads(line) for line in done.stderr.splitlines()]


def test_each_line_is_an_object_that_names_process_and_run() -> None:
    written = lines()
    assert [line["event"] for line in written] == [
        "leased",
        "beware of this",
        "failed",
        "failed, too",
    ]
    assert all((line["process"], line["run_id"]) == ("replay", "run-1") for line in written)
    assert [line["level"] for line in written] == ["info", "warning", "error", "error"]
    assert all("timestamp" in line for line in written)
    assert written[0]["count"] == 3
    assert written[1]["logger"] == "other"


def test_a_traceback_stays_on_its_line_without_local_values() -> None:
    for line in lines()[2:]:
        assert "ValueError: why" in line["exception"]
        assert "Traceback" in line["exception"]
        assert "a local value" not in line["exception"]


def test_a_full_disk_costs_lines_and_not_the_work_that_writes_them() -> None:
    script = SCRIPT + "print('the work is done')"
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            stderr=full,
            text=True,
            check=True,
            timeout=60,
        )
    assert done.stdout == "the work is done\n"
