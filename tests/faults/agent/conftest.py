from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.faults.agent.agents import Band
from tests.faults.agent.gang import Gang
from tests.faults.agent.warm import WarmBand, WarmStarter


@pytest.fixture
async def band(tmp_path: Path) -> AsyncIterator[Band]:
    """Agents of one job on addresses of their own."""
    band = Band(folder=tmp_path)
    yield band
    await band.stop()


@pytest.fixture(scope="session")
def starter() -> WarmStarter:
    """Forks agents whose ranks are real."""
    return WarmStarter()


@pytest.fixture
async def warm_band(starter: WarmStarter, tmp_path: Path) -> AsyncIterator[WarmBand]:
    """The same, forked from a process that has imported torch."""
    band = WarmBand(folder=tmp_path, starter=starter)
    yield band
    await band.stop()


@pytest.fixture
def gang(band: Band) -> Gang:
    """The same agents under a stand-in for the operator."""
    return Gang(band)
