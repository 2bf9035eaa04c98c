"""One starter of gangs for the whole session."""

from __future__ import annotations

import pytest
import torch

from tests.gloo.gang import GangStarter


@pytest.fixture(scope="session")
def gangs() -> GangStarter:
    torch.set_num_threads(1)  # this process should leave the cores to the ranks
    return GangStarter()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "gangs" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.gloo)
