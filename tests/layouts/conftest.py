"""Every day a slice: layouts of at most four ranks, a third of the changes and of the rest.

With LAYOUTS=all (`make test-layouts-all`) layouts of up to eight ranks meet, and nothing is left
out: with eight ranks on two cores a step takes the longer the more they wait for each other.
"""

from __future__ import annotations

import os

import pytest

TAIL = {"test_adapters.py", "test_numerics.py"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("LAYOUTS") == "all":
        return
    tail = [item for item in items if item.path.name in TAIL]
    left_out = [item for number, item in enumerate(tail) if number % 3]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)
