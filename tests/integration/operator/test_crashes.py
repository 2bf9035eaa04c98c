"""An operator that dies at any write, and one that wakes up after another took over (I9)."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drumline_contract import Progress
from tests.integration.operator.conftest import HIGH, HIGH_CLASS, Site, release_lease
from tests.integration.operator.proxy import NeverSentError, Proxy, Write
from tests.integration.operator.trainers import Trainers
from tests.kube import Kube, phase_is
from tests.operator_process import OperatorProcess
from tests.patience import HANG_SECONDS

pytestmark = [pytest.mark.usefixtures("no_operator"), pytest.mark.extended(keep=2)]

LIFE_WRITES = 20
"""At least so many writes about the job and its children make up the life below."""
LOSS_WRITES = 12
"""The same of a gang of three that loses a member: 8 until it runs, then 3 of status and a pod."""
YIELD_WRITES = 18
"""The same of a gang of four that gives way to one of two."""
SLICE = 5


def chosen(*, first: int = 1, last: int, slice_size: int = SLICE) -> list[Any]:
    """All crash points with DRUMLINE_CRASH_POINTS=all, else a slice that stays the same."""
    points = [(write, before) for write in range(first, last + 1) for before in (True, False)]
    if os.environ.get("DRUMLINE_CRASH_POINTS") != "all":
        points = sorted(random.Random(SLICE).sample(points, slice_size))
    return [
        pytest.param(*each, id=f"{'before' if each[1] else 'after'}-{each[0]}") for each in points
    ]


@pytest.fixture(scope="module")
def proxy(api: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with Proxy(api.kubeconfig, tmp_path_factory.mktemp("proxy")) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def proxied(proxy: Proxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """An operator behind the proxy; started by the first test that needs it."""
    operator = OperatorProcess(
        kubeconfig=proxy.kubeconfig, folder=tmp_path_factory.mktemp("proxied")
    )
    yield operator
    if operator.process is not None:
        operator.stop()


class Killer:
    """Kills the operator at its n-th write about one namespace and starts it again."""

    def __init__(self, site: Site, operator: OperatorProcess, *, write: int, before: bool) -> None:
        self._site = site
        self._operator = operator
        self._left = write
        self._before = before
        self.struck: Write | None = None

    def __call__(self, write: Write) -> None:
        mine = f"/namespaces/{self._site.namespace}/" in write.path and "events" not in write.about
        if not mine or self.struck or (write.code == 0) != self._before:
            return
        self._left -= 1
        if self._left == 0:
            self.struck = write
            self._operator.kill()
            kube = Kube(self._site.kube.kubeconfig)  # this is the proxy's thread
            release_lease(kube)
            kube.close()
            self._operator.start()
            if self._before:
                raise NeverSentError


def running_in(generation: int) -> Any:
    return lambda job: phase_is("Running")(job) and job["status"]["generation"] == generation


def live(site: Site) -> None:
    """Submitted, running, a pod lost, replaced, suspended, resumed."""
    site.submit("life", nodes=2, gpusPerNode=8)
    site.wait("life", running_in(1))
    site.kube.delete("pods", "life-1-g1", site.namespace, grace=0)
    site.wait("life", running_in(2))
    site.kube.patch("trainingjobs", "life", {"spec": {"suspend": True}}, site.namespace)
    site.wait("life", phase_is("Suspended"))
    site.kube.wait_all(
        "pods", site.namespace, lambda pods: not pods, labels="drumline.dev/job=life"
    )
    site.kube.patch("trainingjobs", "life", {"spec": {"suspend": False}}, site.namespace)
    site.wait("life", running_in(3))


def state(site: Site, proxy: Proxy) -> dict[str, Any]:
    """What a life must leave behind, whatever happened to the operator."""
    status = site.job("life")["status"]
    children = {
        plural: len(site.kube.list(plural, site.namespace))
        for plural in ("poddisruptionbudgets", "networkpolicies", "secrets")
    }
    created = [
        write for write in proxy.of(site.namespace) if write.about == "pods" and write.code == 201
    ]
    return {
        "pods": sorted(pod["metadata"]["name"] for pod in site.pods("life")),
        "pods ever created": len(created),
        "children": children,
        "phase": status["phase"],
        "generation": status["generation"],
        "restarts": status["restarts"],
        "ready": status["ready"],
    }


UNDISTURBED = {
    "pods": ["life-0-g3", "life-1-g3"],
    "pods ever created": 6,
    "children": {"poddisruptionbudgets": 1, "networkpolicies": 1, "secrets": 1},
    "phase": "Running",
    "generation": 3,
    "restarts": 1,
    "ready": "2/2",
}


def started(operator: OperatorProcess) -> None:
    if operator.process is None or operator.process.poll() is not None:
        operator.start()


@pytest.mark.extended(keep=1, of="crashes")
@pytest.mark.parametrize(("write", "before"), chosen(last=LIFE_WRITES))
def test_a_crash_at_a_write_leaves_the_state_of_an_undisturbed_life(
    site: Site, proxy: Proxy, proxied: OperatorProcess, write: int, before: bool
) -> None:
    killer = Killer(site, proxied, write=write, before=before)
    proxy.gate = killer
    started(proxied)
    try:
        live(site)
    finally:
        proxy.gate = lambda _: None
    assert killer.struck is not None
    assert state(site, proxy) == UNDISTURBED


def lose_a_member(site: Site) -> None:
    """A gang of the bundled trainer; a pod vanishes, and is replaced alone."""
    with Trainers(site, "life") as gang:
        gang.submit(nodes=3)
        gang.attend("0-g1", "1-g1", "2-g1")
        gang.running(1)
        site.kube.delete("pods", "life-1-g1", site.namespace, grace=0)
        gang.attend("0-g1", "1-g2", "2-g1")
        gang.running(2)


def created(site: Site, proxy: Proxy) -> int:
    """Pods ever created in this corner."""
    writes = proxy.of(site.namespace)
    return sum(write.about == "pods" and write.code == 201 for write in writes)


def assert_at_least(count: int, site: Site, proxy: Proxy) -> None:
    """So many writes there are in an undisturbed life: each can be crashed at."""
    assert sum("events" not in write.about for write in proxy.of(site.namespace)) >= count


def assert_replaced_alone(site: Site, proxy: Proxy) -> None:
    names = sorted(pod["metadata"]["name"] for pod in site.pods("life"))
    assert names == ["life-0-g1", "life-1-g2", "life-2-g1"]
    status = site.job("life")["status"]
    assert [each["used"] for each in status["budgets"]] == [1]
    assert created(site, proxy) == 4


@pytest.mark.extended(keep=1, of="crashes")
@pytest.mark.parametrize(("write", "before"), chosen(first=9, last=LOSS_WRITES, slice_size=3))
def test_a_crash_while_a_member_is_replaced_replaces_it_once(
    site: Site, proxy: Proxy, proxied: OperatorProcess, write: int, before: bool
) -> None:
    killer = Killer(site, proxied, write=write, before=before)
    proxy.gate = killer
    started(proxied)
    try:
        lose_a_member(site)
    finally:
        proxy.gate = lambda _: None
    assert killer.struck is not None
    assert_replaced_alone(site, proxy)


def test_what_the_loss_of_a_member_costs(
    site: Site, proxy: Proxy, proxied: OperatorProcess
) -> None:
    started(proxied)
    lose_a_member(site)
    assert_replaced_alone(site, proxy)
    assert_at_least(LOSS_WRITES, site, proxy)
    done = [write for write in proxy.of(site.namespace) if write.code < 300]
    made = Counter(write.about for write in done)
    assert made.pop("events") <= 6
    assert made == {
        "trainingjobs/status": 2 + 3,  # lost, placed anew, running
        "pods": 3 + 1,
        "secrets": 1,
        "networkpolicies": 1,
        "poddisruptionbudgets": 1,
    }


def give_way(site: Site) -> set[str]:
    """A gang saves and leaves for a more important one; returns the ids of its notices."""
    saved = Progress(step=30, total_steps=90, checkpoint_step=30, checkpoint_digest="d30")
    with Trainers(site, "low", saves=saved) as low, Trainers(site, "high") as high:
        low.submit(nodes=4)
        low.attend("0-g1", "1-g1", "2-g1", "3-g1")
        low.running(1)
        agent = low.agents["low-0-g1"]
        high.submit(nodes=2, priorityClassName=HIGH)
        high.attend("0-g1", "1-g1", after=low)
        high.running(1)
        return {notice.id for notice in agent.notices}


def test_what_it_costs_to_give_way(site: Site, proxy: Proxy, proxied: OperatorProcess) -> None:
    site.kube.ensure(HIGH_CLASS)
    started(proxied)
    give_way(site)
    assert_at_least(YIELD_WRITES, site, proxy)
    made = Counter(write.about for write in proxy.of(site.namespace) if write.code < 300)
    # each is admitted and runs; a promise, a disruption and a release; three seconds later, and so
    # perhaps after this, why it waits now
    assert 2 * 2 + 3 <= made["trainingjobs/status"] <= 2 * 2 + 4


@pytest.mark.extended(keep=1, of="crashes")
@pytest.mark.parametrize(("write", "before"), chosen(first=10, last=YIELD_WRITES, slice_size=5))
def test_a_crash_during_a_preemption_asks_once_and_loses_nothing(
    site: Site, proxy: Proxy, proxied: OperatorProcess, write: int, before: bool
) -> None:
    site.kube.ensure(HIGH_CLASS)
    killer = Killer(site, proxied, write=write, before=before)
    proxy.gate = killer
    started(proxied)
    try:
        notices = give_way(site)
    finally:
        proxy.gate = lambda _: None
    assert killer.struck is not None
    low, high = site.job("low")["status"], site.job("high")["status"]
    assert len(notices) == 1
    assert (low["phase"], low["generation"], low["checkpoint"]["step"]) == ("Pending", 1, 30)
    assert (high["phase"], high["generation"]) == ("Running", 1)
    assert not {"disruption", "nominated"} & (low.keys() | high.keys())
    site.kube.wait_all("pods", site.namespace, lambda pods: not pods, labels="drumline.dev/job=low")
    assert created(site, proxy) == 6


def test_an_undisturbed_life_and_what_it_costs(
    site: Site, proxy: Proxy, proxied: OperatorProcess
) -> None:
    started(proxied)
    live(site)
    assert state(site, proxy) == UNDISTURBED
    assert_at_least(LIFE_WRITES, site, proxy)
    done = [write for write in proxy.of(site.namespace) if write.code < 300]
    made = Counter(write.about for write in done if write.method != "DELETE")
    assert made.pop("events") <= 8
    assert made == {
        "trainingjobs/status": 9,
        "pods": 6,
        "secrets": 1,
        "networkpolicies": 1,
        "poddisruptionbudgets": 1,
    }


def test_an_undisturbed_job_costs_its_pods_and_six_writes(
    site: Site, proxy: Proxy, proxied: OperatorProcess
) -> None:
    started(proxied)
    site.submit("plain", nodes=4, gpusPerNode=8)
    site.wait("plain", phase_is("Running"))
    site.end_pods("plain")
    site.wait("plain", phase_is("Succeeded"))
    writes = Counter(write.about for write in proxy.of(site.namespace))
    assert writes.pop("events") <= 4
    assert writes == {
        "trainingjobs/status": 3,
        "pods": 4,
        "secrets": 1,
        "networkpolicies": 1,
        "poddisruptionbudgets": 1,
    }


def test_a_leader_that_wakes_up_after_another_took_over_changes_nothing(
    site: Site, api: Kube, proxy: Proxy, proxied: OperatorProcess, tmp_path: Path
) -> None:
    if proxied.process is not None:
        proxied.stop()
    lease = {"DRUMLINE_LEASE_SECONDS": "13"}
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    first = OperatorProcess(kubeconfig=proxy.kubeconfig, folder=folders[0], settings=lease)
    second = OperatorProcess(kubeconfig=api.kubeconfig, folder=folders[1], settings=lease)
    first.start()
    assert first.process is not None
    try:
        site.submit("watched", nodes=2, gpusPerNode=8)
        before = site.wait("watched", phase_is("Running"))
        first.process.send_signal(signal.SIGSTOP)
        second.start()
        epoch = before["status"]["epoch"]
        site.wait("watched", lambda job: job["status"]["epoch"] > epoch)
        late: list[Write] = []

        def note(write: Write) -> None:
            if write.code:
                late.append(write)

        proxy.gate = note
        # Both see this; only one may act upon it.
        site.kube.delete("pods", "watched-0-g1", site.namespace, grace=0)
        first.process.send_signal(signal.SIGCONT)
        assert first.process.wait(timeout=HANG_SECONDS) != 0
        after = site.wait("watched", running_in(2))
        assert after["status"]["epoch"] > epoch
        assert {write.code for write in late} <= {409}
        assert len(site.pods("watched")) == 2
    finally:
        proxy.gate = lambda _: None
        first.process.kill()
        first.process.wait()
        if second.process is not None:
            second.stop()
