"""Servers that play vLLM's."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from vllm_http import VllmServer, serving


@pytest_asyncio.fixture
async def server() -> AsyncIterator[VllmServer]:
    async with serving() as [made]:
        yield made


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[list[VllmServer]]:
    async with serving(2) as made:
        yield made
