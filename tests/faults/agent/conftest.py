from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.faults.agent.agents import Band
from tests.faults.agent.commands import CommandBand
from tests.faults.agent.gang import Gang
from tests.faults.agent.warm import WarmBand, WarmStarter


@pytest.fixture
async def band(tmp_path: Path) -> AsyncIterator[Band]:
    """Agents of one job on addresses of their own, started as in a pod."""
    band = Band(folder=tmp_path)
    yield band
    await band.stop()


@pytest.fixture(scope="session")
def starter() -> WarmStarter:
    """Forks agents from a process that has imported torch."""
    return WarmStarter()


@pytest.fixture
async def gang(starter: WarmStarter, tmp_path: Path) -> AsyncIterator[Gang]:
    """Forked agents under a stand-in for the operator: what is at stake begins once they stand."""
    band = WarmBand(folder=tmp_path, starter=starter)
    yield Gang(band)
    await band.stop()


@pytest.fixture
async def pods(tmp_path: Path) -> AsyncIterator[Gang]:
    """Pods of a gang that runs a command."""
    band = CommandBand(folder=tmp_path)
    yield Gang(band)
    await band.stop()
