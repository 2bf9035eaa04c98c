"""What the tests under loss share."""

from __future__ import annotations

import pytest

from tests.integration.operator.loss.lanes import Undisturbed


@pytest.fixture(scope="session")
def observed() -> dict[str, Undisturbed]:
    """The lives that were observed undisturbed: how one ends depends on no test."""
    return {}
