from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.faults.agent.agents import Band


@pytest.fixture
async def band(tmp_path: Path) -> AsyncIterator[Band]:
    """Agents of one job on addresses of their own."""
    band = Band(folder=tmp_path)
    yield band
    await band.stop()
