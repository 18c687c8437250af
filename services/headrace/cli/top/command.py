"""`headrace top`: a run, live, in this terminal."""

from __future__ import annotations

from headrace.cli.arguments import CaOption, TokenFileOption
from headrace.cli.look import ReplayOption, RunOption


def top(
    run: RunOption = None,
    replay: ReplayOption = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Watch a run: its window, workers, waits and prompts, as it goes.

    Keys: `w` and a uid show where that prompt is, Esc leads back, `q` leaves.
    Without a terminal it prints the run once.

    Example: `headrace top --run runs/sort-digits`
    """
    import asyncio
    import sys

    from rich.console import Console

    from headrace.cli.find import tool_security
    from headrace.cli.places import Places
    from headrace.cli.top.session import Top

    places = Places.find(run, replay, tool_security(replay, token_file, ca))
    console = Console(highlight=False)

    async def show() -> None:
        shown = Top(places, console)
        if console.is_terminal and sys.stdin.isatty():
            await shown.run()
        else:
            await shown.snapshot()

    asyncio.run(show())
