"""What counts as the one domain of a slice."""

from __future__ import annotations

from drumline_scheduler import Role, Slice
from tests.unit.scheduler.builders import cluster, gang, node, pod, run


def test_nodes_of_no_known_rack_hold_no_slice() -> None:
    """Beside the rack's pair there is room for two pods more, but nobody knows where that is."""
    nodes = (*(node(f"n{i}", "rack-0", gpus=1) for i in range(2)), node("n2", gpus=2))
    pairs = (Slice(level="rack", pods=2),)
    assert run(cluster(*nodes), gang("a", nodes=4, slices=pairs)).placed == ()
    assert run(cluster(*nodes), gang("a", nodes=2, slices=pairs)).placed[0].domain == ("rack-0",)
    assert len(run(cluster(*nodes), gang("a", nodes=4)).placed) == 1


def test_kept_places_that_would_part_a_slice_are_not_taken() -> None:
    nodes = [node(f"n{i}", f"rack-{i // 2}", gpus=1) for i in range(4)]
    pairs = (Slice(level="rack", pods=2),)
    for kept, taken in ((("n0", "n2"), ("n0", "n1")), (("n2", "n3"), ("n2", "n3"))):
        gang_a = gang("a", nodes=2, slices=pairs, nominated=kept, nominated_pool="h100")
        assert run(cluster(*nodes), gang_a).placed[0].assignment == taken


def test_beside_roles_they_hold_none_either() -> None:
    """A known rack with room for one slice, and two places of no rack with room for one each."""
    nodes = (
        node("n0", "block-0", "rack-0", gpus=2),
        node("n1", "block-0", gpus=2),
        node("n2", "block-1", gpus=2),
    )
    gang_a = gang(
        "a",
        nodes=4,
        slices=(Slice(level="rack", pods=2),),
        roles=(Role(name="launcher", pods=1, per_pod=pod(0, cpu=1)),),
    )
    assert run(cluster(*nodes, levels=("block", "rack")), gang_a).placed == ()
