"""The observed gang: the pod of each member, missing pods, and orphans.

A pod represents a member if it has the member's index and pod generation and is on its node, on
which Drumline created it. All other pods of the job, and pods of lost members, are orphan pods.
They are deleted gracefully, never by force: until an orphan has ended it holds the GPUs of its
node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import GangMember, members_of
from drumline.lifecycle.model.observed import Observed, PodFacts
from drumline.lifecycle.model.roles import role_pod
from drumline_contract import pod_name


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedGang:
    """The members of one job and the pods that represent them."""

    members: tuple[GangMember, ...]
    """All members by position, including lost ones."""
    pods: Mapping[int, PodFacts]
    """Pods that represent members, by member index."""
    orphans: tuple[PodFacts, ...]
    """Pods that represent no member, and the pods of lost members."""
    expected: frozenset[int]
    """Indices of members whose pods were created but are not in the cache yet."""
    expects_orphans: bool
    """True if pods of an earlier generation were created that are not in the cache yet."""
    lost: frozenset[int]
    """Indices of lost members."""
    joining: frozenset[int]
    """Indices of members that do not train yet while the gang grows."""

    @property
    def remaining(self) -> tuple[GangMember, ...]:
        """Return members that are not lost, by position."""
        return tuple(member for member in self.members if member.index not in self.lost)

    @property
    def present(self) -> tuple[PodFacts, ...]:
        """Return the pods of the remaining members, by position."""
        return tuple(
            self.pods[member.index] for member in self.remaining if member.index in self.pods
        )

    @property
    def missing(self) -> tuple[GangMember, ...]:
        """Return remaining members without a pod."""
        return tuple(
            member
            for member in self.remaining
            if member.index not in self.pods and member.index not in self.expected
        )

    @property
    def complete(self) -> bool:
        """Return whether every member has its pod and none is lost."""
        return not self.lost and len(self.present) == len(self.members)


def observed_gang(job: Job, observed: Observed) -> ObservedGang:
    """Return the job's members and the observed pods. O(members + pods)."""
    # The identity of a member's pod: index, generation and node. Anybody can write labels, so a pod
    # that differs in one of them is an orphan.
    members = members_of(job.status)
    places = {member.index: (member.pod_generation, member.node) for member in members}
    names = {
        pod_name(job.name, member.index, member.pod_generation): member.index for member in members
    }
    assignment = job.status.assignment
    lost = frozenset((assignment.lost if assignment else None) or ())
    pods = {
        pod.index: pod
        for pod in observed.pods
        if places.get(pod.index) == (pod.generation, pod.node)
    }
    return ObservedGang(
        members=members,
        pods=pods,
        orphans=tuple(
            pod
            for pod in observed.pods
            if places.get(pod.index) != (pod.generation, pod.node) or pod.index in lost
        ),
        expected=frozenset(names[name] for name in observed.expected_pods & names.keys()),
        expects_orphans=bool(observed.expected_pods - names.keys()),
        lost=lost,
        joining=frozenset((assignment.joining if assignment else None) or ()),
    )


def reachable_agents(job: Job, pods: Iterable[PodFacts], *, known: int) -> list[PodFacts]:
    """Return the members' pods whose agents can answer for the gang, leader first.

    The leader is the member with the lowest index in the newest generation that the agents know. So
    pods of a later generation come last, and joining members are left out until the agents know
    them. Pods of roles have no agent. O(members + pods).

    Example: the agents know generation 1, and member 0 has a new pod of generation 2: the order is
    1, 2, 0. Once they know generation 2 it is 0, 1, 2.

    Args:
        job: the job. Its status contains the members.
        pods: pods of the job.
        known: newest generation whose record the agents have acknowledged.
    """
    # Phase 1: members that the agents know.
    assignment = job.status.assignment
    joining = (assignment.joining if assignment else None) or ()
    absent = frozenset(joining) if known < (job.status.generation or 0) else frozenset[int]()
    members = [
        member
        for member in members_of(job.status)
        if member.index not in absent and role_pod(job.spec, member.index) is None
    ]
    # Phase 2: the order in which they can answer for the gang.
    members.sort(key=lambda member: (member.pod_generation > known, member.index))
    # Phase 3: their pods, if they have an address and have not ended.
    answering = {
        (pod.index, pod.generation, pod.node): pod for pod in pods if pod.ip and pod.end is None
    }
    keys = ((member.index, member.pod_generation, member.node) for member in members)
    return [answering[key] for key in keys if key in answering]
