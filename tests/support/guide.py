"""The commands of docs/kubernetes.md, taken from its text, and run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from kubectl import kubectl

MENTIONED = re.compile(r"`(kubectl [^`\n]+)`")


class Guide:
    """What is still to be run.

    Args:
        checkout: A copy, in which the commands are run.
        overlay: Is used in place of cpu-demo.

    """

    def __init__(self, checkout: Path, overlay: str) -> None:
        self.checkout = checkout
        self._overlay = overlay
        text = (checkout / "docs" / "kubernetes.md").read_text()
        blocks = re.compile(r"```bash\n(.*?)```", re.DOTALL)
        self._commands: list[tuple[str, str]] = [
            (section.partition("\n")[0], command)
            for section in text.split("\n## ")
            for command in blocks.findall(section)
        ]
        """By the heading that they stand under."""
        self._done: list[str] = []
        self._mentioned: list[str] = MENTIONED.findall(blocks.sub("", text))

    def until(self, word: str) -> None:
        """Run the commands up to, and with, the next that has this word."""
        while True:
            _, command = self._commands.pop(0)
            self._run(command)
            self._done.append(command)
            if word in command:
                return

    def again(self, word: str) -> None:
        """Run a command once more that has this word."""
        [command] = [command for command in self._done if word in command]
        self._run(command)

    def follow(self, heading: str) -> None:
        """Run the commands of a section."""
        here = [command for section, command in self._commands if section == heading]
        assert here, heading
        self._commands = [each for each in self._commands if each[0] != heading]
        for command in here:
            self._run(command)

    def mentioned(self, word: str, name: str = "") -> None:
        """Run what the text mentions with this word; NAME stands for a name in it."""
        here = [command for command in self._mentioned if word in command]
        assert here, word
        self._mentioned = [command for command in self._mentioned if word not in command]
        for command in here:
            self._run(command.replace("NAME", name))

    @property
    def left(self) -> list[str]:
        """What was not run."""
        return [*(command for _, command in self._commands), *self._mentioned]

    def _run(self, command: str) -> None:
        command = command.replace("overlays/cpu-demo", f"overlays/{self._overlay}")
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=self.checkout, env={**os.environ, "PATH": path},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        print(f"$ {command}\n{done.stdout}", flush=True)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{kubectl('get', 'pods')}"
