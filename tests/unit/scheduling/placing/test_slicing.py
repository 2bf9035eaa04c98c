"""What counts as the one domain of a slice."""

from __future__ import annotations

from drumline.scheduling import Slice
from tests.unit.scheduling.builders import cluster, gang, node, run


def test_nodes_of_no_known_rack_hold_no_slice() -> None:
    """Beside the rack's pair there is room for two pods more, but nobody knows where that is."""
    nodes = (*(node(f"n{i}", "rack-0", gpus=1) for i in range(2)), node("n2", gpus=2))
    pairs = (Slice(level="rack", pods=2),)
    assert run(cluster(*nodes), gang("a", nodes=4, slices=pairs)).placed == ()
    assert run(cluster(*nodes), gang("a", nodes=2, slices=pairs)).placed[0].domain == ("rack-0",)
    assert len(run(cluster(*nodes), gang("a", nodes=4)).placed) == 1
