from __future__ import annotations

import pytest

from drumline_trainer.launch.nodelist import (
    first_compute_host,
    host_part,
    hosts_of,
    port_part,
    tasks_of,
)


@pytest.mark.parametrize(
    ("nodelist", "hosts"),
    [
        ("a", ["a"]),
        ("a,b-1", ["a", "b-1"]),
        ("a[01-03,7]", ["a01", "a02", "a03", "a7"]),
        ("a[9-11],b2,c[5]", ["a9", "a10", "a11", "b2", "c5"]),
        ("rack[0-1]node[2-3].site", [f"rack{r}node{n}.site" for r in (0, 1) for n in (2, 3)]),
    ],
)
def test_a_nodelist_is_written_out(nodelist: str, hosts: list[str]) -> None:
    assert list(hosts_of(nodelist)) == hosts


@pytest.mark.parametrize("nodelist", ["", "a,", "a[1-2", "a1]", "a[x-y]", "a[]"])
def test_what_is_no_nodelist_is_refused(nodelist: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        hosts_of(nodelist)


def test_tasks_by_node_are_written_out() -> None:
    assert tasks_of("4(x2),3") == (4, 4, 3)
    assert tasks_of("8") == (8,)
    with pytest.raises(ValueError, match="is not a number of tasks"):
        tasks_of("4(x")


def test_the_batch_host_of_lsf_runs_no_ranks() -> None:
    assert first_compute_host("batch1 1 node1 42 node2 42") == "node1"
    assert first_compute_host("node1 42 node2 42") == "node1"
    assert first_compute_host("node1 1") == "node1"


def test_host_and_port() -> None:
    assert (host_part("a:80"), port_part("a:80")) == ("a", "80")
    assert (host_part("[::1]:80"), port_part("[::1]:80")) == ("::1", "80")
    assert port_part("80") == "80"
    with pytest.raises(ValueError, match="is not host:port"):
        host_part("a")
