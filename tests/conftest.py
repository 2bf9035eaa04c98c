"""What all tests share: which of them run, how Hypothesis judges time, golden files, a store.

Hypothesis fails an example that takes longer than 200 ms, or data that is slow to make. On a
machine that others use either happens to sound code.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import structlog
import yaml
from hypothesis import HealthCheck, settings

from tests.object_store import ObjectStore, running
from tests.texts import Golden
from tools.suite import selection

settings.register_profile(
    "busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy machine")
yaml.SafeLoader = yaml.CSafeLoader  # type: ignore[misc,assignment]
"""`yaml.safe_load` then uses the loader in C. The CRDs have 300 kB."""

structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(
            colors=False, exception_formatter=structlog.dev.plain_traceback
        ),
    ]
)
"""Without this structlog draws each traceback with all variables, which takes seconds."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--choose", choices=selection.CHOICES, default=selection.ALL)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    selection.select(config, items)


def pytest_collection_finish() -> None:
    """Keep the garbage collector from walking modules and tests: it took a quarter of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_unconfigure() -> None:
    """Give the modules back: extension modules complain at exit about what nobody collects."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """An S3 server that runs while anybody uses it."""
    with running(tmp_path_factory.mktemp("objects")) as store:
        yield store


@pytest.fixture
def golden(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Golden:
    """Compare a text of 120 columns with a file in the folder `golden` beside the test."""
    monkeypatch.setenv("COLUMNS", "120")
    return Golden(request.path.parent / "golden")
