"""Volumes: the nodes from which a job's claims can be used.

A bound claim can be used where the node affinity of its volume allows it. An unbound claim can be
used where its storage class provisions volumes (`allowedTopologies`). Without read access, every
node is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable

from drumline.kube.views import ClaimView, ExpressionView, StorageClassView, VolumeView
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.plan.claims import claim_names, pod_claim_classes
from drumline_api.trainingjob import TrainingJobSpec
from drumline_scheduler.model import NodeOperator, NodeRequirement, VolumeReach

_Terms = tuple[tuple[ExpressionView, ...], ...]
_OPERATORS = frozenset(NodeOperator)


class VolumeCache:
    """Claims, volumes and storage classes as last seen. For one event loop."""

    def __init__(self) -> None:
        self.is_known = False
        """True if a volume or a storage class restricts its nodes."""
        self._claims: dict[tuple[str, str], ClaimView] = {}
        self._volumes: dict[str, _Terms] = {}
        """Node affinity of each volume that has one, by name."""
        self._classes: dict[str, _Terms] = {}
        """AllowedTopologies of each class that has them, by name."""
        self._reach: dict[str, tuple[TrainingJobSpec, tuple[VolumeReach, ...]]] = {}
        """Spec and answer by uid of the job, until a claim, volume or class changes."""

    def on_claim(self, old: ClaimView | None, new: ClaimView | None) -> bool:
        """Process an event and return whether a decision may change. `new` is None if deleted."""
        before = None
        if old is not None:
            before = self._claims.pop((old.namespace, old.name), None)
        if new is not None:
            self._claims[new.namespace, new.name] = new
        changed = before is None or new is None or _bound_to(before) != _bound_to(new)
        if changed:
            self._reach.clear()
        return changed and self.is_known

    def on_volume(self, old: VolumeView | None, new: VolumeView | None) -> bool:
        """Process an event and return whether it may change a decision."""
        if new is not None:
            return self._restrict(self._volumes, new.name, new.affinity)
        return old is not None and self._restrict(self._volumes, old.name, ())

    def on_storage_class(self, old: StorageClassView | None, new: StorageClassView | None) -> bool:
        """Process an event and return whether it may change a decision."""
        if new is not None:
            return self._restrict(self._classes, new.name, new.topologies)
        return old is not None and self._restrict(self._classes, old.name, ())

    def reach_of(self, job: Job) -> tuple[VolumeReach, ...]:
        """Return the volumes of a job that are not usable from every node. O(1) when cached."""
        known = self._reach.get(job.uid)
        if known is None or known[0] is not job.spec:
            known = self._reach[job.uid] = (job.spec, tuple(self._restricted(job)))
        return known[1]

    def forget(self, uid: str) -> None:
        """Forget the cached answer of a deleted job."""
        self._reach.pop(uid, None)

    def _restrict(self, by_name: dict[str, _Terms], name: str, terms: _Terms) -> bool:
        changed = by_name.get(name, ()) != terms
        if terms:
            by_name[name] = terms
        else:
            by_name.pop(name, None)
        if changed:
            self._reach.clear()
            self.is_known = bool(self._volumes or self._classes)
        return changed

    def _restricted(self, job: Job) -> Iterable[VolumeReach]:
        for name in claim_names(job):
            claim = self._claims.get((job.namespace, name))
            # A missing claim does not restrict the nodes. The pods wait for it where they are
            # placed.
            if claim is None:
                continue
            if claim.volume:
                terms, of = self._volumes.get(claim.volume, ()), f"volume {claim.volume}"
            # Not bound: the class decides where a volume can be provisioned.
            else:
                terms, of = self._classes.get(claim.storage_class, ()), _class(claim.storage_class)
            if terms:
                yield _reach(f"{of} of claim {name}", terms)
        # Ephemeral volumes have no claim yet. Their class restricts them like an unbound claim.
        for volume, name in pod_claim_classes(job):
            if terms := self._classes.get(name, ()):
                yield _reach(f"{_class(name)} of volume {volume}", terms)


def _class(name: str) -> str:
    return f"storage class {name}"


def _bound_to(claim: ClaimView) -> tuple[str, str]:
    return claim.volume, claim.storage_class


def _reach(name: str, terms: _Terms) -> VolumeReach:
    return VolumeReach(
        name=name,
        terms=tuple(
            tuple(
                NodeRequirement(
                    key=each.key, operator=NodeOperator(each.operator), values=each.values
                )
                for each in term
                if each.operator in _OPERATORS
            )
            for term in terms
        ),
    )
