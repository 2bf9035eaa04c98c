"""One pool of ranks for all files; LAYOUT_SEED chooses what they train.

The seed chooses a third of the layouts of adapters, optimizers and fp16. With LAYOUTS=all
(`make test-all WHAT=adapters`) all of them train.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.layouts.runs import Runs
from tests.seeds import seed_of

TAIL = {"test_adapters.py", "test_numerics.py"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("LAYOUTS") == "all":
        return
    tail = [item for item in items if item.path.name in TAIL]
    third = seed_of("LAYOUT_SEED") % 3
    left_out = [item for number, item in enumerate(tail) if number % 3 != third]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """The runs of all files: a model that several compare with trains alone once."""
    made = Runs(folder=tmp_path_factory.mktemp("layouts"))
    yield made
    made.pool.close()
