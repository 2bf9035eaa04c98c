"""One starter of gangs for the whole session."""

from __future__ import annotations

import pytest

from tests.gloo.gang import GangStarter


@pytest.fixture(scope="session")
def gangs() -> GangStarter:
    return GangStarter()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "gangs" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.gloo)
