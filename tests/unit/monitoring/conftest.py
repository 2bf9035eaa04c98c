"""Prometheus' own checker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.cluster.promtool import ensure_promtool


@pytest.fixture(scope="session")
def promtool() -> Path:
    program = ensure_promtool()
    if program is None:
        pytest.skip("promtool is not installed, and this is no Debian to take it from")
    return program
