"""`make mutants` finds the functions that get a fault, though tests/conftest.py freezes them."""

from __future__ import annotations

import gc

from drumline_contract import layout
from tools.mutants.trial import functions_of


def test_frozen_functions_are_found() -> None:
    gc.freeze()

    functions = functions_of(frozenset({layout.__name__}))

    gc.freeze()
    assert (layout.__name__, "Layout.coordinate") in functions
