"""Where a notebook looks for the processes of a run."""

from __future__ import annotations

import json
from pathlib import Path

from headrace.client.peers import Peers
from headrace.config.rundir import RunDirectory


def address_of(peers: Peers, name: str) -> str:
    return peers._addresses[name]


def test_an_address_that_is_given_counts_before_what_the_replay_buffer_says() -> None:
    peers = Peers(known={"checkpoint": "here:1"})

    peers.learn({"checkpoint": "there:1", "trainer": "there:2"})

    assert address_of(peers, "checkpoint") == "here:1"
    assert address_of(peers, "trainer") == "there:2"


def test_a_run_directory_on_this_machine_counts_before_both(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.endpoint_file("store").parent.mkdir()
    directory.endpoint_file("store").write_text(json.dumps({"address": "127.0.0.1:9", "pid": 1}))
    peers = Peers(known={"checkpoint": "here:1"})

    peers.learn({"store": "there:3"}, directory)

    assert address_of(peers, "store") == "127.0.0.1:9"
    assert address_of(peers, "checkpoint") == "here:1"
