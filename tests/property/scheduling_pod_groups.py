"""Groups of foreign pods in small clusters: what the operator makes of them, and what they are.

A group is a few pods of another scheduler that a queue pays for. It leaves whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random

from drumline.controller.workloads.held import (
    FOREIGN_USER,
    Account,
    ForeignPod,
    RemainingPod,
    account_of_foreign,
    account_of_group,
    held_by_group,
    held_by_pods,
)
from drumline_scheduler import Admitted, Gang, Resources, Role

NAMESPACE = "training"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignGroup:
    """Pods that run, in one pool."""

    of_key: str
    """Key of the gang that was made a group."""
    name: str
    queue: str
    pool: str
    gives_back: bool
    ends_at: float | None
    """End of all pods by their own limit. None: there is none."""
    pods: tuple[tuple[str, Resources], ...]
    """The node and the request of each."""

    @classmethod
    def of(cls, random: Random, held: Admitted) -> ForeignGroup:
        """A running gang's pods as a foreign group; some pods may ask for less than others."""
        less = random.randrange(len(held.assignment) + 1)
        whole = held.gang.per_pod
        part = replace(whole, cpu_millis=whole.cpu_millis // 2, gpus=random.choice([whole.gpus, 0]))
        return cls(
            of_key=held.gang.key,
            name=f"g-{held.gang.key.partition('/')[2]}",
            queue=held.gang.queue,
            pool=held.pool,
            gives_back=random.random() < 0.8,
            ends_at=random.choice([None, None, 1200.0]),
            pods=tuple(
                (node, part if i < less and random.random() < 0.5 else whole)
                for i, node in enumerate(held.assignment)
            ),
        )

    def on(self, node: str) -> Resources:
        """Return the resources that its pods hold on a node."""
        return sum((amount for name, amount in self.pods if name == node), start=Resources())

    # the operator's conversion

    def converted(self) -> list[Admitted]:
        """The group as one gang."""
        account = account_of_group(
            self._account(0),
            namespace=NAMESPACE,
            group=self.name,
            pool=self.pool,
            gives_back=self.gives_back,
        )
        return [held_by_group(account, self._remaining())]

    def converted_apart(self) -> list[Admitted]:
        """Each pod by itself, under the key of the group."""
        key = f"{NAMESPACE}/pods/{self.name}"
        return [
            held
            for i, pod in enumerate(self._remaining())
            for held in held_by_pods(replace(self._account(i), key=key), [pod])
        ]

    # by definition

    def by_hand(self) -> Admitted:
        """One gang of one role for each pod but the last: the order is that of the pods."""
        *roles_of, (node, amount) = self.pods
        roles = tuple(
            Role(name=f"p{i}", pods=1, per_pod=each) for i, (_, each) in enumerate(roles_of)
        )
        uid = self.converted()[0].gang.uid
        return self._held(uid, per_pod=amount, roles=roles, nodes=[*(n for n, _ in roles_of), node])

    def by_hand_apart(self) -> list[Admitted]:
        """One gang for each pod."""
        uids = [held.gang.uid for held in self.converted_apart()]
        return [
            self._held(uid, per_pod=amount, roles=(), nodes=[node])
            for uid, (node, amount) in zip(uids, self.pods, strict=True)
        ]

    def _held(
        self, uid: str, *, per_pod: Resources, roles: tuple[Role, ...], nodes: Iterable[str]
    ) -> Admitted:
        gang = Gang(
            key=f"{NAMESPACE}/pods/{self.name}",
            uid=uid,
            queue=self.queue,
            nodes=1,
            per_pod=per_pod,
            roles=roles,
            queued_at=0.0,
            user=FOREIGN_USER,
        )
        return Admitted(
            gang=gang,
            pool=self.pool,
            assignment=tuple(nodes),
            preemptible=self.gives_back,
            ends_at=self.ends_at,
            is_residual=True,
            is_foreign=True,
        )

    def _account(self, i: int) -> Account:
        pod = ForeignPod(namespace=NAMESPACE, name=f"{self.name}-{i}", uid=f"{self.name}-{i}")
        return account_of_foreign(pod, queue=self.queue, gives_back=self.gives_back)

    def _remaining(self) -> list[RemainingPod]:
        return [
            RemainingPod(
                name=f"{self.name}-{i}",
                node=node,
                pool=self.pool,
                requests=amount,
                leaving=False,
                ends_at=self.ends_at,
            )
            for i, (node, amount) in enumerate(self.pods)
        ]
