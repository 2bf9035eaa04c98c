"""A third of what adapters, optimizers and fp16 do in layouts; LAYOUT_SEED chooses which.

With LAYOUTS=all (`make test-all WHAT=adapters`) nothing is left out.
"""

from __future__ import annotations

import os

import pytest

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
