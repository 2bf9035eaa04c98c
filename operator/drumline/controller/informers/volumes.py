"""Volumes: the nodes from which a job's claims can be used.

A bound claim can be used where the node affinity of its volume allows it. An unbound claim can be
used where its storage class provisions volumes (`allowedTopologies`). A CSI driver may limit the
volumes that are attached to a node (`CSINode`). Each volume that pods of the node use counts once,
with pods of all owners. Without read access, every node is allowed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain, product
from typing import TypeVar

from drumline.kube.views import (
    ClaimView,
    CsiNodeView,
    ExpressionView,
    PodView,
    StorageClassView,
    VolumeView,
)
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.plan.claims import claim_names, pod_claim_classes
from drumline_api.trainingjob import TrainingJobSpec
from drumline_scheduler.model import AttachedVolumes, NodeOperator, NodeRequirement, VolumeReach

_Claim = tuple[str, str]
"""Namespace and name."""
_Terms = tuple[tuple[ExpressionView, ...], ...]
_Key = TypeVar("_Key", str, _Claim)
_Entry = TypeVar("_Entry", str, _Claim)
_View = TypeVar("_View", VolumeView, StorageClassView)
_OPERATORS = frozenset(NodeOperator)


class VolumeCache:
    """Claims, volumes, classes and limits of nodes as last seen. For one event loop."""

    def __init__(self) -> None:
        self.is_known = False
        """True if a volume, a storage class or a driver restricts the nodes of a volume."""
        self.limited: frozenset[str] = frozenset()
        """CSI drivers that can attach a limited number of volumes to some node."""
        self._restricting = 0
        """Number of volumes and classes that restrict their nodes."""
        self._claims: dict[_Claim, ClaimView] = {}
        self._claim_of: dict[str, _Claim] = {}
        """Claim that is bound to a volume, by name of the volume."""
        self._volumes: dict[str, VolumeView] = {}
        """Volumes with a node affinity or a CSI driver, by name."""
        self._classes: dict[str, StorageClassView] = {}
        self._limits: dict[str, Mapping[str, int]] = {}
        """Limits by node and driver."""
        self._mounts: dict[str, Counter[_Claim]] = {}
        """Number of users of each claim, pods and places of jobs, by node."""
        self._nodes: dict[_Claim, Counter[str]] = {}
        """Number of users on each node, by claim."""
        self._places: dict[str, tuple[tuple[_Claim, str], ...]] = {}
        """Claims and nodes of each job with places, by uid of the job."""
        self._changed: set[str] = set()
        """Nodes whose attached volumes may have changed since the last `take_changed`."""
        self._reach: dict[str, tuple[TrainingJobSpec, tuple[VolumeReach, ...]]] = {}
        """Spec and answer by uid of the job, until a claim, volume or class changes."""

    def on_claim(self, old: ClaimView | None, new: ClaimView | None) -> bool:
        """Process an event and return whether a decision may change. `new` is None if deleted."""
        before = None
        if old is not None:
            before = self._claims.pop((old.namespace, old.name), None)
            self._claim_of.pop(old.volume, None)
        if new is not None:
            self._claims[new.namespace, new.name] = new
            if new.volume:
                self._claim_of[new.volume] = (new.namespace, new.name)
        if before is not None and new is not None and _bound_to(before) == _bound_to(new):
            return False
        view = new or old
        return view is not None and self._restricts(self._users((view.namespace, view.name)))

    def on_volume(self, old: VolumeView | None, new: VolumeView | None) -> bool:
        """Process an event and return whether it may change a decision."""
        view = new or old
        if view is None:
            return False
        kept = new if new is not None and (new.affinity or new.driver) else None
        before = _put(self._volumes, view.name, kept)
        if _of_volume(before) == _of_volume(kept):
            return False
        self._restricting += bool(kept and kept.affinity) - bool(before and before.affinity)
        claim = self._claim_of.get(view.name)
        return self._restricts(self._users(claim) if claim is not None else ())

    def on_storage_class(self, old: StorageClassView | None, new: StorageClassView | None) -> bool:
        """Process an event and return whether it may change a decision."""
        view = new or old
        if view is None:
            return False
        before = _put(self._classes, view.name, new)
        if _of_class(before) == _of_class(new):
            return False
        self._restricting += bool(new and new.topologies) - bool(before and before.topologies)
        return self._restricts(self._mounts)

    def on_csi_node(self, old: CsiNodeView | None, new: CsiNodeView | None) -> bool:
        """Process an event and return whether it may change a decision."""
        view = new or old
        if view is None:
            return False
        before = self._limits.pop(view.name, {})
        if new is not None and new.limits:
            self._limits[new.name] = dict(new.limits)
        if self._limits.get(view.name, {}) == before:
            return False
        self.limited = frozenset(chain.from_iterable(self._limits.values()))
        self._changed.add(view.name)
        return self._restricts(())

    def on_pod(self, old: PodView | None, new: PodView | None) -> None:
        """Process an event of a pod that holds its node, or None."""
        for pod, change in ((old, -1), (new, 1)):
            if pod is None:
                continue
            for name in pod.claims:
                self._mount((pod.namespace, name), node=pod.node_name, change=change)

    def on_job(self, before: Job | None, after: Job | None) -> None:
        """Process a change of a job. Its places use its claims before its pods exist."""
        if before is not None:
            for claim, node in self._places.pop(before.uid, ()):
                self._mount(claim, node=node, change=-1)
        places = after.status.assignment if after is not None else None
        if after is None or places is None or after.finished:
            return
        claims = [(after.namespace, name) for name in claim_names(after)]
        used = self._places[after.uid] = tuple(product(claims, set(places.node_names())))
        for claim, node in used:
            self._mount(claim, node=node, change=1)

    def _mount(self, claim: _Claim, *, node: str, change: int) -> None:
        """Count one user of a claim on a node more or less."""
        _count(self._mounts, node, claim, change)
        _count(self._nodes, claim, node, change)

    def take_changed(self) -> set[str]:
        """Return the nodes whose attached volumes may have changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def attached(self, node: str) -> tuple[AttachedVolumes, ...]:
        """Return the drivers with a limit on a node, and the volumes that its pods use."""
        limits = self._limits.get(node)
        if not limits:
            return ()
        used: dict[str, set[str]] = {driver: set() for driver in limits}
        for claim in self._mounts.get(node, ()):
            driver, volume = self._attachment(claim)
            if driver in used:
                used[driver].add(volume)
        return tuple(
            AttachedVolumes(driver=driver, limit=limits[driver], volumes=frozenset(volumes))
            for driver, volumes in sorted(used.items())
        )

    def reach_of(self, job: Job) -> tuple[VolumeReach, ...]:
        """Return the volumes of a job that restrict its nodes. O(1) when cached."""
        known = self._reach.get(job.uid)
        if known is None or known[0] is not job.spec:
            known = self._reach[job.uid] = (job.spec, tuple(self._restricted(job)))
        return known[1]

    def forget(self, uid: str) -> None:
        """Forget the cached answer of a deleted job."""
        self._reach.pop(uid, None)

    def _users(self, claim: _Claim) -> Iterable[str]:
        """Return the nodes with pods that use a claim."""
        return self._nodes.get(claim, ())

    def _restricts(self, nodes: Iterable[str]) -> bool:
        """Forget what follows from a change; return whether it may change a decision.

        Args:
            nodes: nodes whose attached volumes may differ now.
        """
        self._reach.clear()
        if self.limited:
            self._changed.update(nodes)
        before, self.is_known = self.is_known, bool(self._restricting or self.limited)
        return before or self.is_known

    def _attachment(self, claim: _Claim) -> tuple[str, str]:
        """Return driver and identity of a claim's volume; '' as driver if it is not known."""
        view = self._claims.get(claim)
        if view is None:
            return "", ""
        if view.volume:
            volume = self._volumes.get(view.volume)
            return (volume.driver, volume.handle) if volume is not None else ("", "")
        # Not bound: the volume will be made for this claim.
        storage = self._classes.get(view.storage_class)
        return (storage.provisioner if storage is not None else ""), "/".join(claim)

    def _restricted(self, job: Job) -> Iterable[VolumeReach]:
        for name in claim_names(job):
            claim = self._claims.get((job.namespace, name))
            # A missing claim does not restrict the nodes. The pods wait for it where they are
            # placed.
            if claim is None:
                continue
            if claim.volume:
                volume = self._volumes.get(claim.volume)
                terms, of = volume.affinity if volume is not None else (), f"volume {claim.volume}"
            # Not bound: the class decides where a volume can be provisioned.
            else:
                terms, of = self._terms_of(claim.storage_class), _class(claim.storage_class)
            driver, identity = self._attachment((job.namespace, name))
            yield from self._restriction(
                f"{of} of claim {name}", terms, driver=driver, volume=identity
            )
        # Ephemeral volumes have no claim yet. Their class restricts them like an unbound claim.
        for volume_name, name in pod_claim_classes(job):
            storage = self._classes.get(name)
            yield from self._restriction(
                f"{_class(name)} of volume {volume_name}",
                self._terms_of(name),
                driver=storage.provisioner if storage is not None else "",
            )

    def _restriction(
        self, name: str, terms: _Terms, *, driver: str, volume: str = ""
    ) -> Iterable[VolumeReach]:
        """Return the restriction by a volume, or nothing if all nodes reach and attach it."""
        limited_driver = driver if driver in self.limited else ""
        if terms or limited_driver:
            yield VolumeReach(
                name=name,
                terms=_requirements(terms),
                driver=limited_driver,
                volume=volume if limited_driver else "",
            )

    def _terms_of(self, storage_class: str) -> _Terms:
        known = self._classes.get(storage_class)
        return known.topologies if known is not None else ()


def attachable(driver: str) -> str:
    """Return the resource that counts the volumes of a driver, as kube-scheduler names it."""
    return f"attachable-volumes-csi-{driver}"


def _of_volume(view: VolumeView | None) -> object:
    return view and (view.affinity, view.driver, view.handle)


def _of_class(view: StorageClassView | None) -> object:
    return view and (view.topologies, view.provisioner)


def _count(by_key: dict[_Key, Counter[_Entry]], key: _Key, entry: _Entry, change: int) -> None:
    """Change a count, and drop it once it is zero."""
    counts = by_key.setdefault(key, Counter())
    counts[entry] += change
    if not counts[entry]:
        del counts[entry]
    if not counts:
        del by_key[key]


def _put(by_name: dict[str, _View], name: str, view: _View | None) -> _View | None:
    """Store a view, or remove it if it is None. Return the one before."""
    before = by_name.pop(name, None)
    if view is not None:
        by_name[name] = view
    return before


def _class(name: str) -> str:
    return f"storage class {name}"


def _bound_to(claim: ClaimView) -> tuple[str, str]:
    return claim.volume, claim.storage_class


def _requirements(terms: _Terms) -> tuple[tuple[NodeRequirement, ...], ...]:
    return tuple(
        tuple(
            NodeRequirement(key=each.key, operator=NodeOperator(each.operator), values=each.values)
            for each in term
            if each.operator in _OPERATORS
        )
        for term in terms
    )
