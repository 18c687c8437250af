"""`headrace status | where | prompts | audit`: questions about a run."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.arguments import CaOption, TokenFileOption

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from rich.text import Text

    from headrace.cli.find import Found

BROKEN = 1
"""Exit code of an audit that found something."""

State = StrEnum(
    "State", ["pending", "running", "finished", "failed", "sampled", "trained", "dropped"]
)
Reason = StrEnum(
    "Reason",
    ["stale", "stale_at_restore", "filtered", "failed", "too_long", "surplus", "cancelled"],
)

RunOption = Annotated[
    Path | None,
    typer.Option("--run", help="A run directory.", show_default="the newest below ./runs"),
]
ReplayOption = Annotated[
    str | None,
    typer.Option("--replay", metavar="HOST:PORT", help="Instead: a running replay buffer."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]


def status(
    run: RunOption = None,
    replay: ReplayOption = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    json: JsonOption = False,
) -> None:
    """Say where a run is: its step, its prompts by state, its workers, what it waits for.

    Works while the run lives, and afterwards from its journal.

    Example: `headrace status --run runs/sort-digits`
    """
    from headrace.cli.others import other_processes
    from headrace.client.tables import status_table

    found = _find(run, replay, token_file, ca)
    answer = found.run.status()
    processes = [answer.process, *other_processes(found.directory, found.security)]
    name = answer.process.run_id or (found.directory.path.name if found.directory else "")
    print_answer(answer, status_table(name, answer, processes), as_json=json)


def where(
    uid: Annotated[str, typer.Argument(help="The prompt, such as e0r4711 (epoch 0, row 4711).")],
    run: RunOption = None,
    replay: ReplayOption = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    json: JsonOption = False,
) -> None:
    """Say where one prompt is, and everything that ever happened to it.

    Example: `headrace where e0r42`
    """
    from headrace.client.history import history_table

    answer = _find(run, replay, token_file, ca).run.where(uid)
    print_answer(answer, history_table(answer), as_json=json)


def prompts(
    state: Annotated[State | None, typer.Option(help="Only prompts in this state.")] = None,
    reason: Annotated[
        Reason | None, typer.Option(help="Only prompts that were dropped for this reason.")
    ] = None,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, max=1000, help="The most to list.")
    ] = 50,
    page: Annotated[str, typer.Option(help="Go on from here; the page before says it.")] = "",
    run: RunOption = None,
    replay: ReplayOption = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    json: JsonOption = False,
) -> None:
    """List prompts by their position in the feed.

    Example: `headrace prompts --state dropped --reason stale -n 20`
    """
    from headrace.client.tables import prompts_table

    found = _find(run, replay, token_file, ca)
    answer = found.run.page(state=state, reason=reason, size=count, token=page)
    print_answer(answer, prompts_table(answer.groups), as_json=json)
    if answer.next_page_token and not json:
        typer.echo(f"There are more: add --page {answer.next_page_token}", err=True)


def audit(
    run: RunOption = None,
    replay: ReplayOption = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    json: JsonOption = False,
) -> None:
    """Check that no prompt was lost or trained on twice. Exits with 1 if something is broken.

    The balance rule: fed = pending + running + finished + failed + sampled + trained + dropped.

    Example: `headrace audit && echo all prompts are accounted for`
    """
    from headrace.client.tables import audit_table

    answer = _find(run, replay, token_file, ca).run.audit()
    print_answer(answer, audit_table(answer), as_json=json)
    if not answer.ok:
        raise typer.Exit(BROKEN)


def _find(run: Path | None, replay: str | None, token_file: Path | None, ca: Path | None) -> Found:
    from headrace.cli.find import find_run, tool_security

    found = find_run(run, replay, tool_security(replay, token_file, ca))
    if found.remark:
        typer.echo(found.remark, err=True)
    return found


def print_answer(answer: Message, table: Text, *, as_json: bool) -> None:
    """Print an answer as a table, or as the JSON that it is."""
    from google.protobuf.json_format import MessageToJson
    from rich.console import Console

    if as_json:
        text = MessageToJson(
            answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        typer.echo(text)
    else:
        Console(highlight=False, soft_wrap=True).print(table, soft_wrap=True)
