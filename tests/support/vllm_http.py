"""A real HTTP server that plays a vLLM server with our extension, and can be made to fail."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from ports import free_port

from headrace.rollout.engines.base import EngineError
from headrace.rollout.engines.vllm_server.facts import BACKEND, EXTENSION, GENERATE
from headrace.rollout.engines.vllm_server.tag import Tag
from headrace.rollout.engines.weights import confirm
from headrace.v1 import prompt_pb2
from headrace.weights.directory import write
from headrace.weights.probe import PROBE_NAME, SCHEMA_VERSION, ScoredSequence, TrainerProbe

EOS = 1
TOKEN = 7
"""What it samples, but for the stop."""
LOGPROB = -0.25
PROBED = [[2, 3, 4], [5, 6]]


@dataclass
class Reply:
    """What is answered instead of the truth."""

    status: int = 500
    body: Any = None
    hangs: bool = False
    hangs_up: bool = False


@dataclass
class Plan:
    """How the next answers to generate go."""

    stop_after: int | None = None
    """Tokens, the stop included; None = as many as are allowed."""
    hold_after: int | None = None
    """Tokens after which it waits for `gate`."""
    break_after: int | None = None
    """Tokens after which the connection breaks."""
    spoil: Callable[[dict[str, Any]], None] = lambda choice: None
    """Changes an event."""


@dataclass
class Call:
    """What was asked for."""

    path: str
    query: dict[str, str]
    body: Any
    headers: dict[str, str]


def scores(version: int, token_ids: list[int]) -> list[float]:
    """What both the trainer and a server compute with a version."""
    return [-0.1 * (version + 1 + each) for each in token_ids[1:]]


def publish(root: Path, version: int, *, lineage: str = "l0", wrong: bool = False) -> Any:
    """As a trainer does; the probe may be wrong."""

    def save(directory: Path) -> None:
        (directory / "model.safetensors").write_text(f"weights {version}")
        found = [ScoredSequence(ids, scores(version + wrong, ids)) for ids in PROBED]
        probe = TrainerProbe(SCHEMA_VERSION, "float32", found)
        (directory / PROBE_NAME).write_bytes(probe.to_bytes())

    directory, checksum = write(
        root, run_id="run", lineage=lineage, version=version, write_files=save
    )
    return prompt_pb2.PublishedWeights(
        id=prompt_pb2.WeightsId(lineage=lineage, version=version),
        uri=str(directory),
        checksum=checksum,
    )


@dataclass
class Playing:
    """A server's life."""

    label: str = "default"
    loaded: str = ""
    coming: str = ""
    checked: set[str] = field(default_factory=set)
    updating: bool = False
    owner: str = ""
    owned_until: float = 0.0
    mode: str | None = None
    """How it is paused, if it is."""


class VllmServer:
    """Remembers every call. `replies` are given to calls of a path, instead of the truth."""

    def __init__(self) -> None:
        self.life = Playing()
        self.calls: list[Call] = []
        self.replies: dict[str, Reply] = {}
        self.held: dict[str, asyncio.Event] = {}
        """What calls of a path wait for, before they are answered."""
        self.plan = Plan()
        self.gate = asyncio.Event()
        self.at_once = 0
        """Answers to generate under way."""
        self.most_at_once = 0
        self.given_up = 0
        """Those of them that the caller gave up."""
        self.config: dict[str, Any] = {
            "model_config": {
                "logprobs_mode": "processed_logprobs",
                "generation_config": "vllm",
                "override_generation_config": {},
                "logits_processors": None,
                "dtype": "torch.float32",
                "max_model_len": 64,
            },
            "parallel_config": {"worker_extension_cls": EXTENSION},
            "weight_transfer_config": {"backend": BACKEND},
            "speculative_config": None,
            "watermark_config": None,
            "kv_transfer_config": None,
        }
        self.metrics = ""
        """What it says of its work."""
        self.port = free_port()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._moved = asyncio.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def counts(self) -> Counter[str]:
        """How often which path was asked for."""
        return Counter(call.path for call in self.calls)

    def generated(self) -> list[Call]:
        """Calls that sample."""
        return [call for call in self.calls if call.path == GENERATE and call.body.get("stream")]

    async def open(self) -> None:
        """Begin a life."""
        self.life = Playing()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def kill(self) -> None:
        """End it, in the middle of whatever it does."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client went away, or the life is over
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        path, _, query = head[0].split(" ")[1].partition("?")
        pairs = (line.split(": ", 1) for line in head[1:] if line)
        headers = {name.lower(): value for name, value in pairs}
        data = await reader.readexactly(int(headers.get("content-length", 0)))
        body: Any = json.loads(data) if data else None
        self.calls.append(Call(path, dict(parse_qsl(query)), body, headers))
        if path in self.held:
            await self.held[path].wait()
        reply = self.replies.get(path)
        if reply is None and path == GENERATE and body["stream"]:
            return await self._stream(reader, writer, body)
        if reply is not None:
            if reply.hangs:
                await asyncio.Event().wait()
            if reply.hangs_up:
                return False
            status, answer = reply.status, reply.body
        else:
            try:
                status, answer = 200, await self._answer(path, dict(parse_qsl(query)), body)
            except (EngineError, ValueError) as error:
                status, answer = 500, {"error": {"message": str(error)}}
        data = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        writer.write(
            f"HTTP/1.1 {status} Said\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
        )
        await writer.drain()
        return True

    async def _answer(self, path: str, query: dict[str, str], body: Any) -> Any:
        life = self.life
        match path:
            case "/health" | "/inference/v1/abort_requests" | "/init_weight_transfer_engine":
                return {}
            case "/version":
                return {"version": "0.32.0"}
            case "/server_info":
                return {"vllm_config": self.config}
            case "/weight_info":
                return {"weight_version": life.label}
            case "/metrics":
                return self.metrics
            case "/is_paused":
                return {"is_paused": life.mode is not None}
            case "/collective_rpc":
                return {"results": [getattr(self, f"_{body['method']}")(*body.get("args", []))]}
            case "/pause":
                life.mode = query["mode"]
                while life.mode == "wait" and self.at_once:
                    await self._change()
            case "/resume":
                life.mode = None
                await self._changed()
            case "/start_weight_update":
                if life.updating:
                    raise ValueError("a weight update is already active")
                life.updating, life.loaded = True, ""
            case "/update_weights":
                tag = body["update_info"]["tag"]
                if not life.updating or tag not in life.checked:
                    raise ValueError(f"{tag} was not checked here")
                life.coming = tag
            case "/finish_weight_update":
                life.updating, life.loaded = False, life.coming
                life.label = body["weight_version"]
            case _ if path == GENERATE:
                tag = Tag.parse(life.loaded)
                version = tag.version if tag is not None else -1
                found = scores(version, body["token_ids"])
                pairs = zip(body["token_ids"][1:], found, strict=True)
                return {"prompt_logprobs": [None, *({str(i): {"logprob": p}} for i, p in pairs)]}
            case _:
                raise AssertionError(path)
        return {}

    def _headrace_check(self, uri: str, checksum: str, lineage: str, version: str) -> Any:
        number = int(version)
        weights = prompt_pb2.WeightsId(lineage=lineage, version=number)
        try:
            confirm(prompt_pb2.PublishedWeights(id=weights, uri=uri, checksum=checksum))
        except EngineError as error:
            return {"state": "wrong", "why": str(error)}
        self.life.checked.add(str(Tag(lineage, number, checksum)))
        return {"state": "checked", "why": ""}

    def _headrace_take_turn(self, owner: str, seconds: str) -> Any:
        life = self.life
        if life.owner not in ("", owner) and time.monotonic() < life.owned_until:
            return {"owner": life.owner}
        life.updating = False
        life.owner, life.owned_until = owner, time.monotonic() + float(seconds)
        return {"owner": owner}

    def _headrace_renew_turn(self, owner: str, seconds: str) -> Any:
        if self.life.owner == owner:
            self.life.owned_until = time.monotonic() + float(seconds)
        return {"owner": self.life.owner}

    def _headrace_end_turn(self, owner: str) -> Any:
        if self.life.owner == owner:
            self.life.owner = ""
        return {"owner": self.life.owner}

    def _headrace_weights(self) -> Any:
        return {"tag": self.life.loaded}

    async def _stream(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: Any
    ) -> bool:
        head = "HTTP/1.1 200 Said\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        writer.write(head.encode())
        gone = asyncio.ensure_future(reader.read(1))  # the client says no more
        work = asyncio.ensure_future(self._generate(writer, body, self.plan))
        try:
            await asyncio.wait({gone, work}, return_when=asyncio.FIRST_COMPLETED)
            self.given_up += not work.done()
            return False
        finally:
            for task in (gone, work):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def _generate(self, writer: asyncio.StreamWriter, body: Any, plan: Plan) -> None:
        sampling = body["sampling_params"]
        limit = sampling["max_tokens"]
        count = limit if plan.stop_after is None else min(limit, plan.stop_after)
        while self.life.mode is not None:
            await self._change()
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        spans: list[dict[str, Any]] = []
        sent = 0
        try:
            for index in range(count):
                if index == plan.break_after:
                    writer.transport.abort()
                    return
                if index == plan.hold_after:
                    await self.gate.wait()
                while self.life.mode == "keep":
                    await self._change()
                if not spans or spans[-1]["version"] != self.life.label:
                    spans.append({"version": self.life.label, "start": index, "end": index})
                spans[-1]["end"] = index + 1
                over = index + 1 == count
                interval = sampling["stream_interval"]
                if over or index + 1 - sent >= interval or not sent:
                    await self._event(writer, index + 1 - sent, over, spans, plan)
                    sent = index + 1
        finally:
            self.at_once -= 1
            await self._changed()
        writer.write(_chunk(b"data: [DONE]\n\n") + _chunk(b""))
        await writer.drain()

    async def _event(
        self, writer: asyncio.StreamWriter, count: int, over: bool, spans: Any, plan: Plan
    ) -> None:
        stops = over and plan.stop_after is not None
        ids = [TOKEN] * (count - stops) + [EOS] * stops
        choice = {
            "index": 0,
            "finish_reason": ("stop" if stops else "length") if over else None,
            "token_ids": ids,
            "logprobs": {"content": [{"token_id": each, "logprob": LOGPROB} for each in ids]},
            "weight_versions": spans if over else None,
        }
        plan.spoil(choice)
        event = json.dumps({"choices": [choice]}).encode()
        writer.write(_chunk(b"data: " + event + b"\n\n"))
        await writer.drain()

    async def _change(self) -> None:
        async with self._moved:
            await self._moved.wait()

    async def _changed(self) -> None:
        async with self._moved:
            self._moved.notify_all()


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


@asynccontextmanager
async def serving(count: int = 1) -> AsyncIterator[list[VllmServer]]:
    """Give servers that run."""
    servers = [VllmServer() for _ in range(count)]
    for server in servers:
        await server.open()
    try:
        yield servers
    finally:
        for server in servers:
            await server.kill()
