"""Every remedy is a sentence with its figures."""

from __future__ import annotations

import pytest

from drumline_scheduler.decisions import Remedy, RemedyKind


@pytest.mark.parametrize("kind", RemedyKind)
def test_every_remedy_says_how_much_and_where(kind: RemedyKind) -> None:
    said = str(Remedy(kind=kind, amount=7, where="there", pool="h100"))
    figures = kind not in {
        RemedyKind.WAIT,
        RemedyKind.WAIT_FOR,
        RemedyKind.CORRECT_NAME,
        RemedyKind.RELAX_TOPOLOGY,
    }
    assert ("7" in said) is figures
    named_ = kind not in {RemedyKind.WAIT, RemedyKind.WAIT_FOR, RemedyKind.ASK_FOR_LESS}
    assert ("there" in said) is named_
