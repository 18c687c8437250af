"""Files of weights stay readable, here and for a child, when the trainer has removed them."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import UsageError
from headrace.rollout.engines.base import EngineError
from headrace.rollout.engines.held import held

OPEN_FILES = Path("/proc/self/fd")


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def version(root: Path) -> Path:
    directory = root / "run_l0_v00000003"
    (directory / "deep").mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (directory / "deep" / "model.safetensors").write_bytes(b"w" * 100_000)
    return directory


async def test_what_is_held_is_there_when_its_directory_is_gone(tmp_path: Path) -> None:
    directory = version(tmp_path)
    parent = tmp_path / "temporary"
    async with held(directory, parent=parent) as files:
        shutil.rmtree(directory)

        assert files.parent == parent
        assert (files / "config.json").read_text() == "{}"
        assert (files / "deep" / "model.safetensors").is_file()
        code = "import sys, pathlib; print(len(pathlib.Path(sys.argv[1]).read_bytes()))"
        for _ in range(2):  # whoever opens it begins at its beginning
            told = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-c", code, str(files / "deep" / "model.safetensors")],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            assert told.stdout.strip() == "100000"

    assert not names(parent)


async def test_what_is_gone_already_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="v00000003 was removed by the trainer"):
        async with held(tmp_path / "run_l0_v00000003", parent=tmp_path):
            pass

    assert not names(tmp_path)


async def test_a_folder_that_cannot_be_made_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"weights\.tmpdir: no folder can be made in .*file"):
        async with held(version(tmp_path), parent=tmp_path / "file"):
            pass


async def test_nothing_stays_of_what_was_cancelled_while_files_are_opened(tmp_path: Path) -> None:
    directory = version(tmp_path)
    for row in range(300):
        (directory / f"{row}.json").touch()
    parent = tmp_path / "temporary"

    async def hold() -> None:
        async with held(directory, parent=parent):
            await asyncio.Event().wait()

    before = len(names(OPEN_FILES))
    holding = asyncio.create_task(hold())
    while not parent.exists():  # noqa: ASYNC110
        await asyncio.sleep(0)
    holding.cancel()
    await asyncio.wait([holding])

    assert holding.cancelled()
    assert not names(parent)
    assert len(names(OPEN_FILES)) <= before
