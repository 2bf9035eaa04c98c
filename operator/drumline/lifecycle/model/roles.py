"""The pods of roles among the members of a gang.

Members are counted by rank first, then by role. Of 4 nodes with the roles `launcher` (1) and `ps`
(2), members 0 to 3 have the ranks, member 4 is launcher-0, members 5 and 6 are ps-0 and ps-1. So
code for ranks never depends on roles. A gang with roles keeps its size.

The scheduler counts pods of roles first (`scheduler.model.Gang`). `scheduling_order` is its order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from drumline_api.role import RoleSpec
from drumline_api.trainingjob import TrainingJobSpec

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePod:
    """One pod of a role."""

    role: RoleSpec
    number: int
    """Number among the pods of its role, from 0."""

    @property
    def host(self) -> str:
        """Return the host name that its peers use."""
        return f"{self.role.name}-{self.number}"


def role_pods(spec: TrainingJobSpec) -> int:
    """Return the number of pods besides those with ranks."""
    return sum(role.nodes for role in spec.roles or ())


def role_pod(spec: TrainingJobSpec, index: int) -> RolePod | None:
    """Return the role's pod with this index of the gang, or None if it has ranks. O(roles)."""
    number = index - spec.nodes
    if number < 0:
        return None
    for role in spec.roles or ():
        if number < role.nodes:
            return RolePod(role=role, number=number)
        number -= role.nodes
    return None


def gang_gpus(spec: TrainingJobSpec, *, members: int) -> int:
    """Return the GPUs of a gang of `members` pods, including roles. O(roles)."""
    ranks = max(0, members - role_pods(spec))
    roles = sum(role.nodes * role.gpus_per_node for role in spec.roles or ())
    return ranks * spec.gpus_per_node + roles


def gpus_of(spec: TrainingJobSpec, indices: Iterable[int]) -> int:
    """Return the GPUs of the pods with these indices. O(indices x roles)."""
    pods = (role_pod(spec, index) for index in indices)
    return sum(spec.gpus_per_node if pod is None else pod.role.gpus_per_node for pod in pods)


def has_channel(spec: TrainingJobSpec, index: int) -> bool:
    """Return whether the pod of this index gets a channel of the job's ComputeDomain."""
    return spec.compute_domain is not None and gpus_of(spec, (index,)) > 0


def decides_success(spec: TrainingJobSpec, index: int) -> bool:
    """Return whether the end of the pod with this index decides the job's success."""
    pod = role_pod(spec, index)
    if any(role.completes_job for role in spec.roles or ()):
        return pod is not None and pod.role.completes_job
    return pod is None


def scheduling_order(spec: TrainingJobSpec, members: Sequence[_T]) -> tuple[_T, ...]:
    """Reorder values of members, by position, to the scheduler's order: roles first."""
    ranks = len(members) - role_pods(spec)
    return (*members[ranks:], *members[:ranks])


def member_order(spec: TrainingJobSpec, places: Sequence[_T]) -> tuple[_T, ...]:
    """Reorder values of the scheduler's places to the order of members: roles last."""
    first = role_pods(spec)
    return (*places[first:], *places[:first])


def member_position(spec: TrainingJobSpec, place: int, *, members: int) -> int:
    """Return the position among the members of the scheduler's place.

    Args:
        spec: spec of the job.
        place: position in the scheduler's order.
        members: number of members.
    """
    return (place - role_pods(spec)) % members
