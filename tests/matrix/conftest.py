"""One warm process and one undisturbed run for all cells of a session."""

from __future__ import annotations

import asyncio

import pytest

from tests.faults.agent.warm import WarmStarter
from tests.matrix.run import undisturbed_run
from tests.matrix.stage import Observation
from tests.matrix.warm import striking_starter


@pytest.fixture(scope="session")
def starter() -> WarmStarter:
    return striking_starter()


@pytest.fixture(scope="session")
def undisturbed(starter: WarmStarter) -> Observation:
    return asyncio.run(undisturbed_run(starter))
