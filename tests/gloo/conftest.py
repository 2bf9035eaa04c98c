"""One starter of gangs for the whole session."""

from __future__ import annotations

from multiprocessing import forkserver

import pytest
import torch

from tests.gloo.gang import GangStarter, fork_server


@pytest.fixture(scope="session")
def gangs() -> GangStarter:
    torch.set_num_threads(1)  # this process should leave the cores to the ranks
    return GangStarter()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "gangs" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.gloo)


def pytest_collection_finish(session: pytest.Session) -> None:
    """The warm process imports torch while tests run that need none."""
    if not session.config.option.collectonly and any(map(_forks, session.items)):
        fork_server()
        capture = session.config.pluginmanager.getplugin("capturemanager")
        assert capture is not None
        capture.resume_global_capture()  # it inherits what tests print to, and so do its ranks
        forkserver.ensure_running()
        capture.suspend_global_capture()


def _forks(item: pytest.Item) -> bool:
    return not {"gangs", "starter"}.isdisjoint(getattr(item, "fixturenames", ()))
