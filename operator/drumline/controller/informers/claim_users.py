"""The pods and the places of jobs that use each PersistentVolumeClaim, by claim and by node.

Places count before their pods exist. A pod of a job has the job as its owner, so a job's own use
can be left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import NamedTuple, TypeVar

Claim = tuple[str, str]
"""Namespace and name."""
_Key = TypeVar("_Key", str, Claim)
_Entry = TypeVar("_Entry", "ClaimUser", Claim)


class ClaimUser(NamedTuple):
    """A pod, or the place of a job on one node, that uses a claim."""

    node: str
    owner: str
    """Uid of the job, or of a pod without an owner."""
    name: str
    """Name for messages: `pod eval-0`, `job team/llama`."""


class ClaimUsers:
    """Users of claims. For one event loop."""

    def __init__(self) -> None:
        self._by_node: dict[str, Counter[Claim]] = {}
        """Number of users of each claim, by node."""
        self._by_claim: dict[Claim, Counter[ClaimUser]] = {}

    def change(self, claim: Claim, user: ClaimUser, by: int) -> None:
        """Count a user of a claim once more (1) or once less (-1)."""
        _count(self._by_node, user.node, claim, by)
        _count(self._by_claim, claim, user, by)

    def claims_on(self, node: str) -> Iterable[Claim]:
        """Return the claims that are used on a node."""
        return self._by_node.get(node, ())

    @property
    def nodes(self) -> Iterable[str]:
        """All nodes on which a claim is used."""
        return self._by_node

    def nodes_of(self, claim: Claim) -> Collection[str]:
        """Return the nodes on which a claim is used."""
        return {user.node for user in self._by_claim.get(claim, ())}

    def besides(self, claim: Claim, *, owner: str) -> list[ClaimUser]:
        """Return the users of a claim in a fixed order, without those of one owner.

        Args:
            claim: the claim.
            owner: uid of the owner.
        """
        return sorted(user for user in self._by_claim.get(claim, ()) if user.owner != owner)


def _count(by_key: dict[_Key, Counter[_Entry]], key: _Key, entry: _Entry, change: int) -> None:
    """Change a count, and drop it once it is zero."""
    counts = by_key.setdefault(key, Counter())
    counts[entry] += change
    if not counts[entry]:
        del counts[entry]
    if not counts:
        del by_key[key]
