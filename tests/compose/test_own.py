"""What docs/compose.md says of a run of one's own: its overrides are real, and one of them trains.

Needs a Docker engine with compose v2 and the images; `make test-compose` runs it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

pytestmark = [pytest.mark.compose, pytest.mark.timeout(900)]

ROOT = Path(__file__).parent.parent.parent
GUIDE = (ROOT / "docs" / "compose.md").read_text()
OVERRIDES = [
    block for block in re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL) if "services:" in block
]
LOOK = ["--replay", "localhost:7000", "--token-file", "/certs/token", "--ca", "/certs/ca.pem"]
STEPS = 6
REWARDS = """
def score(*, response, answer, data_source):
    assert data_source == "rows"
    return float(response.strip() == answer)
"""


class Place:
    """A folder with the project's compose file, and an override of docs/compose.md."""

    def __init__(self, folder: Path, override: str) -> None:
        self.folder = folder
        (folder / "docker").mkdir()
        for name in ("docker-compose.yml", "docker/run.yaml"):
            shutil.copy(ROOT / name, folder / name)
        (folder / "docker-compose.override.yml").write_text(override)

    def compose(self, *words: str) -> str:
        command = ["docker", "compose", "-p", "headrace-own", *words]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def trainer(self) -> dict[str, object]:
        """Give the state of its container."""
        [found] = json.loads(f"[{self.compose('ps', '-a', 'trainer', '--format', 'json')}]")
        state: dict[str, object] = found
        return state


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Place]:
    """Own rows, an own reward and an own configuration, by the first override."""
    place = Place(tmp_path, OVERRIDES[0])
    config = yaml.safe_load((tmp_path / "docker" / "run.yaml").read_text())
    config["data"]["source"] = {"kind": "jsonl", "path": "/mine/rows.jsonl"}
    config["reward"] = {"kind": "python", "function": "my_rewards:score"}
    config["trainer"]["total_training_steps"] = STEPS
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(config))
    own = tmp_path / "mine"
    own.mkdir()
    rows = [{"prompt": f"{n:04}>", "answer": "".join(sorted(f"{n:04}"))} for n in range(1000)]
    (own / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (own / "my_rewards.py").write_text(REWARDS)
    for path in (tmp_path, own, *own.iterdir(), tmp_path / "my.yaml"):
        path.chmod(0o755)
    place.compose("up", "-d", "--no-build")
    yield place
    print(place.compose("logs", "--no-color", "--tail", "5"))
    place.compose("down", "--volumes", "--remove-orphans")


@pytest.mark.parametrize("number", range(len(OVERRIDES)))
def test_an_override_of_the_guide_is_one(tmp_path: Path, number: int) -> None:
    (tmp_path / "s3.env").write_text("AWS_ACCESS_KEY_ID=a\n")
    place = Place(tmp_path, OVERRIDES[number])

    made = yaml.safe_load(place.compose("config"))

    given = yaml.safe_load(OVERRIDES[number].replace("!override", ""))["services"]
    assert given.keys() <= made["services"].keys()
    for service, settings in given.items():
        found = made["services"][service]
        assert settings.keys() - {"env_file"} <= found.keys()
        assert "env_file" not in settings or found["environment"]["AWS_ACCESS_KEY_ID"] == "a"


def test_own_rows_and_an_own_reward_are_trained_on_and_the_model_is_exported(mine: Place) -> None:
    for _ in range(300):
        if mine.trainer()["State"] == "exited":
            break
        time.sleep(1)
    assert mine.trainer()["ExitCode"] == 0

    status = mine.compose("exec", "-T", "replay", "headrace", "status", "--json", *LOOK)
    assert int(json.loads(status)["counts"]["trained"]) == STEPS * 32
    mine.compose("exec", "-T", "replay", "headrace", "audit", *LOOK)
    saved = "/run/headrace/checkpoints"
    export = ["export", "latest", f"{saved}/model", "--storage", saved]
    mine.compose("run", "--rm", "--no-deps", "trainer", *export)
    mine.compose("cp", f"checkpoint:{saved}/model", "model")
    assert (mine.folder / "model" / "config.json").is_file()
