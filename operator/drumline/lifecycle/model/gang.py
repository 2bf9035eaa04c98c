"""The gang as it stands: which pod is whose, who is missing, who is a stray.

A pod stands for a member when index and birth are the member's. Everything else of the job's pods
is a stray; so is the pod of a member that was given up. Strays are deleted gracefully, never
forced: until one is really gone it holds its node's devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from drumline.api.jobstatus import TrainingJobStatus
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import GangMember, members_of
from drumline.lifecycle.model.observed import Observed, PodFacts
from drumline_trainer.contract import pod_name


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedGang:
    """One job's members beside its pods."""

    members: tuple[GangMember, ...]
    """By position, lost ones included."""
    pods: Mapping[int, PodFacts]
    """By index: the pod that stands for the member."""
    orphans: tuple[PodFacts, ...]
    """Pods that stand for nobody, the lost members' own included."""
    expected: frozenset[int]
    """Members whose pods were created and are not shown yet."""
    expects_orphans: bool
    """Whether pods of an earlier membership were created that are not shown yet."""
    lost: frozenset[int]
    """Members given up."""
    joining: frozenset[int]
    """Members that the others train without."""

    @property
    def remaining(self) -> tuple[GangMember, ...]:
        """Members that were not given up."""
        return tuple(member for member in self.members if member.index not in self.lost)

    @property
    def present(self) -> tuple[PodFacts, ...]:
        """Their pods, by position."""
        return tuple(
            self.pods[member.index] for member in self.remaining if member.index in self.pods
        )

    @property
    def missing(self) -> tuple[GangMember, ...]:
        """Members without a pod."""
        return tuple(
            member
            for member in self.remaining
            if member.index not in self.pods and member.index not in self.expected
        )

    @property
    def complete(self) -> bool:
        """Whether every member has its pod, and none was given up."""
        return not self.lost and len(self.present) == len(self.members)


def observed_gang(job: Job, observed: Observed) -> ObservedGang:
    """The job's members beside the pods that are seen. O(members + pods)."""
    members = members_of(job.status)
    births = {member.index: member.pod_generation for member in members}
    names = {pod_name(job.name, one.index, one.pod_generation): one.index for one in members}
    assignment = job.status.assignment
    lost = frozenset((assignment.lost if assignment else None) or ())
    pods = {pod.index: pod for pod in observed.pods if births.get(pod.index) == pod.generation}
    return ObservedGang(
        members=members,
        pods=pods,
        orphans=tuple(
            pod
            for pod in observed.pods
            if births.get(pod.index) != pod.generation or pod.index in lost
        ),
        expected=frozenset(names[name] for name in observed.expected_pods & names.keys()),
        expects_orphans=bool(observed.expected_pods - names.keys()),
        lost=lost,
        joining=frozenset((assignment.joining if assignment else None) or ()),
    )


def reachable_agents(
    status: TrainingJobStatus, pods: Iterable[PodFacts], *, known: int
) -> list[PodFacts]:
    """The members' pods that can be asked about their gang, who leads it first. O(members + pods).

    A gang is led by the lowest index of the membership that its agents know: pods that were born
    later come last, and members that join are in no gang yet.

    Args:
        status: says who the members are.
        pods: the job's.
        known: the newest generation that the agents are known to have been told.
    """
    assignment = status.assignment
    joining = (assignment.joining if assignment else None) or ()
    absent = frozenset(joining) if known < (status.generation or 0) else frozenset[int]()
    members = [member for member in members_of(status) if member.index not in absent]
    members.sort(key=lambda member: (member.pod_generation > known, member.index))
    found = {(pod.index, pod.generation): pod for pod in pods if pod.ip and pod.end is None}
    keys = ((member.index, member.pod_generation) for member in members)
    return [found[key] for key in keys if key in found]
