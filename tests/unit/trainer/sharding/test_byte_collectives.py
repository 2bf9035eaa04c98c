from __future__ import annotations

import pytest

from drumline_trainer.sharding.byte_collectives import framed, unframed


@pytest.mark.parametrize("payload", [b"", b"rank 1: disk full"])
def test_a_message_arrives_as_it_was_sent(payload: bytes) -> None:
    assert unframed(framed(payload)) == payload


@pytest.mark.parametrize("left", [b"", bytes(4), bytes(21), framed(b"rank 1: disk full")[:12]])
def test_what_an_abort_leaves_is_no_message(left: bytes) -> None:
    """Neither nothing, nor memory that nothing was written to, nor a part."""
    with pytest.raises(ConnectionError, match="has not arrived whole"):
        unframed(left)
