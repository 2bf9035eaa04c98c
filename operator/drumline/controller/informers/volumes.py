"""Volumes: the nodes from which a job's claims can be used.

A bound claim can be used where the node affinity of its volume allows it. An unbound claim can be
used where its storage class provisions volumes (`allowedTopologies`). A CSI driver may limit the
volumes that are attached to a node (`CSINode`). Each volume that pods of the node use counts once,
with pods of all owners. Without read access, every node is allowed.

A volume that is being provisioned for a node can be used near that node only: on nodes with the
same labels of the driver's topology (`CSINode`), or in its zone. A ReadWriteOnce claim can be used
on the node of its other users only, unless its volume needs no attachment (`CSIDriver`, NFS).

The podProfile of a pool adds claims to its pods. They count as claims of a job that names the pool
alone. A job for several pools avoids the nodes of a pool that its profile's volumes do not reach.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Final, TypeVar

from drumline.controller.informers.claim_users import Claim, ClaimUser, ClaimUsers
from drumline.controller.informers.csi_drivers import CsiDrivers
from drumline.kube.views import (
    ClaimView,
    ExpressionView,
    PodView,
    Sharing,
    StorageClassView,
    VolumeView,
)
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.plan.claims import (
    ClaimFacts,
    StorageClassFacts,
    claim_names,
    claim_trouble,
    missing_claim,
    pod_claim_classes,
    profile_claims,
)
from drumline_api.gpupool import GpuPoolSpec
from drumline_api.trainingjob import TrainingJobSpec
from drumline_scheduler.model import (
    AttachedVolumes,
    NodeOperator,
    NodeRequirement,
    Obstacle,
    ObstacleKind,
    VolumeReach,
    is_well_formed,
)

_Terms = tuple[tuple[ExpressionView, ...], ...]
_View = TypeVar("_View", VolumeView, StorageClassView)
_NODE_NAME: Final = "metadata.name"
_MAX_OPERATOR: Final = 40
_NOWHERE: Final[_Terms] = ((ExpressionView(key=_NODE_NAME, operator="In"),),)
"""A term that no node meets."""
ATTACHABLE: Final = "attachable-volumes-"
"""Prefix of the resources that count volumes. No container can request them."""
_ZONE: Final = "topology.kubernetes.io/zone"


@dataclass(frozen=True, slots=True)
class _Mounted:
    """The claims that the podProfile of a pool mounts in each pod, and the pool's node labels."""

    claims: tuple[str, ...]
    selector: Mapping[str, str]


class VolumeCache:
    """Claims, volumes, classes and limits of nodes as last seen. For one event loop.

    Args:
        labels_of: returns the labels of a node, or None if the node does not exist.
    """

    def __init__(
        self, *, labels_of: Callable[[str], Mapping[str, str] | None] = lambda _: None
    ) -> None:
        self._labels_of = labels_of
        self.csi = CsiDrivers(changed=self._restricts)
        self.is_known = False
        """True if a volume, class, driver or claim restricts the nodes of a volume."""
        self.has_claims = False
        """True if any claim is known."""
        self.has_all_claims = False
        """True if a claim that is not known does not exist. The operator asks the API server before
        a start, and counts its refusals until the job fails."""
        self.version = 0
        """Number of changes. Answers from claims, volumes and classes may differ after one."""
        self._restricting = 0
        """Number of volumes and classes that restrict their nodes."""
        self._claims: dict[Claim, ClaimView] = {}
        self._claims_in: Counter[str] = Counter()
        """Number of claims by namespace. Claims of some namespaces may not be readable."""
        self._special: set[Claim] = set()
        """Claims that not every pod can use beside the others, or that are not bound."""
        self._unready: set[Claim] = set()
        """Claims that are being deleted, not bound, or of no use to any pod. All are special."""
        self._claim_of: dict[str, Claim] = {}
        """Claim that is bound to a volume, by name of the volume."""
        self._volumes: dict[str, VolumeView] = {}
        """Volumes with a node affinity or a CSI driver, by name."""
        self._classes: dict[str, StorageClassView] = {}
        self._users = ClaimUsers()
        self._places: dict[str, tuple[tuple[Claim, ClaimUser], ...]] = {}
        """Claims and places of each job with places, by uid of the job."""
        self._changed: set[str] = set()
        """Nodes whose attached volumes may have changed since the last `take_changed`."""
        self._mounted: dict[str, _Mounted] = {}
        """Claims of pools whose profile mounts any, by name of the pool."""
        self._named: dict[str, tuple[Job, tuple[Claim, ...]]] = {}
        """Job and claims by uid of the job. The spec decides them."""
        self._naming: Counter[Claim] = Counter()
        """Number of jobs in `_named` that name a claim."""
        self._reach: dict[str, tuple[TrainingJobSpec, tuple[VolumeReach, ...]]] = {}
        """Spec and answer by uid of the job, until a claim, volume or class changes."""

    def on_claim(self, old: ClaimView | None, new: ClaimView | None) -> bool:
        """Process an event and return whether a decision may change. `new` is None if deleted."""
        before = None
        if old is not None:
            before = self._claims.pop((old.namespace, old.name), None)
            # A whole list may show the next claim of the volume before this one.
            if self._claim_of.get(old.volume) == (old.namespace, old.name):
                del self._claim_of[old.volume]
            self._claims_in[old.namespace] -= before is not None
            if not self._claims_in[old.namespace]:
                del self._claims_in[old.namespace]
            for claims in (self._special, self._unready):
                claims.discard((old.namespace, old.name))
        if new is not None:
            self._claims[new.namespace, new.name] = new
            self._claims_in[new.namespace] += 1
            if unready := new.deleting or not new.bound or new.is_block or new.unread:
                self._unready.add((new.namespace, new.name))
            if unready or new.sharing is not Sharing.ANY:
                self._special.add((new.namespace, new.name))
            if new.volume:
                self._claim_of[new.volume] = (new.namespace, new.name)
        self.has_claims = bool(self._claims)
        if before is not None and new is not None and _bound_to(before) == _bound_to(new):
            return False
        view = new or old
        return view is not None and self._restricts(
            self._users.nodes_of((view.namespace, view.name))
        )

    def on_volume(self, old: VolumeView | None, new: VolumeView | None) -> bool:
        """Process an event and return whether it may change a decision."""
        view = new or old
        if view is None:
            return False
        tells = new is not None and (new.affinity or new.driver or new.unattached or new.unread)
        kept = new if tells else None
        before = _put(self._volumes, view.name, kept)
        if _of_volume(before) == _of_volume(kept):
            return False
        self._restricting += _restricts_nodes(kept) - _restricts_nodes(before)
        claim = self._claim_of.get(view.name)
        return self._restricts(self._users.nodes_of(claim) if claim is not None else ())

    def on_storage_class(self, old: StorageClassView | None, new: StorageClassView | None) -> bool:
        """Process an event and return whether it may change a decision."""
        view = new or old
        if view is None:
            return False
        before = _put(self._classes, view.name, new)
        if _of_class(before) == _of_class(new):
            return False
        self._restricting += bool(new and new.topologies) - bool(before and before.topologies)
        return self._restricts(self._users.nodes)

    def on_pod(self, old: PodView | None, new: PodView | None) -> None:
        """Process an event of a pod that holds its node, or None."""
        for pod, change in ((old, -1), (new, 1)):
            if pod is None:
                continue
            for name in pod.claims:
                user = ClaimUser(pod.node_name, pod.owner_uid or pod.uid, f"pod {pod.name}")
                self._users.change((pod.namespace, name), user, change)

    def on_job(self, before: Job | None, after: Job | None) -> None:
        """Process a change of a job. Its places use its claims before its pods exist."""
        if after is not None and not after.finished:
            self._claims_named(after)
        elif before is not None:
            self._forget_names(before.uid)
        if before is not None:
            for claim, user in self._places.pop(before.uid, ()):
                self._users.change(claim, user, -1)
        places = after.status.assignment if after is not None else None
        if after is None or places is None or after.finished:
            return
        claims = [(after.namespace, name) for name in self._names_in((places.gpu_pool,), after)]
        users = [
            ClaimUser(node, after.uid, f"job {after.key}") for node in set(places.node_names())
        ]
        used = self._places[after.uid] = tuple(product(claims, users))
        for claim, user in used:
            self._users.change(claim, user, 1)

    def on_pools(self, pools: Mapping[str, GpuPoolSpec]) -> None:
        """Process a change of the pools."""
        mounted = {
            name: _Mounted(claims, dict(spec.node_selector))
            for name, spec in pools.items()
            if (claims := profile_claims(spec.pod_profile))
        }
        if mounted == self._mounted:
            return
        self._mounted = mounted
        self._reach.clear()
        jobs = [job for job, _ in self._named.values()]
        self._named.clear()
        self._naming.clear()
        for job in jobs:
            self._claims_named(job)

    def take_changed(self) -> set[str]:
        """Return the nodes whose attached volumes may have changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def attached(self, node: str) -> tuple[AttachedVolumes, ...]:
        """Return the drivers with a limit on a node, and the volumes that its pods use."""
        limits = self.csi.limits_of(node)
        if not limits:
            return ()
        used: dict[str, set[str]] = {driver: set() for driver in limits}
        for claim in self._users.claims_on(node):
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
        # Users of claims come and go with every pod, so what follows from them is not kept.
        special = self._special_claims(job)
        return (*known[1], *self._near_others(job, special)) if special else known[1]

    def reach_of_claims(self, namespace: str, names: Iterable[str]) -> tuple[VolumeReach, ...]:
        """Return the claims that restrict the nodes of pods that kube-scheduler places.

        Limits of drivers and other users of the claims are left to kube-scheduler.
        """
        known = [claim for name in names if (claim := self._claims.get((namespace, name)))]
        restricted = ((of, terms) for terms, of in map(self._terms_of_claim, known) if terms)
        return tuple(VolumeReach(name=of, terms=_requirements(terms)) for of, terms in restricted)

    def default_class(self) -> str:
        """Return the name of the default StorageClass, or '' if there is none."""
        # The API server takes the newest, and of equally old ones the first name.
        defaults = sorted(name for name, each in self._classes.items() if each.is_default)
        return max(defaults, key=lambda name: self._classes[name].creation_time, default="")

    def obstacle_of(self, job: Job) -> Obstacle | None:
        """Return why no node serves the claims of a waiting job now, or None."""
        for claim in self._special_claims(job):
            if self._claims[claim].sharing is not Sharing.ONE_POD:
                continue
            for user in self._users.besides(claim, owner=job.uid)[:1]:
                return Obstacle(
                    kind=ObstacleKind.CLAIM_IN_USE,
                    message=f"claim {claim[1]} has the access mode ReadWriteOncePod, and"
                    f" {user.name} on node {user.node} uses it: wait until it ends, or name"
                    " another claim",
                )
        return None

    def unbound_of(self, job: Job) -> str:
        """Return why pods of the job could not use a claim, or '' if nothing is known against it.

        The volume of a class with WaitForFirstConsumer is made once the job has its nodes.
        """
        if not self._claims_in.get(job.namespace):
            return ""
        # This runs for each job of a cycle, and most claims are bound and serve all pods.
        pods = job.members if self.has_all_claims else 1
        asked = self._special if pods > 1 else self._unready
        for claim in self._claims_named(job):
            if self.has_all_claims and claim not in self._claims:
                return missing_claim(claim[1]).message
            view = self._claims.get(claim) if claim in asked else None
            if view is not None and (why := self._unusable(view, pods=pods)):
                return why
        return ""

    def _unusable(self, claim: ClaimView, *, pods: int) -> str:
        """Return why pods of a job could not use a claim, or ''."""
        if claim.unread:
            return f"claim {claim.name} cannot be read"
        view = self._classes.get(self._class_of(claim))
        storage = None
        if view is not None:
            waits = view.binding_mode == "WaitForFirstConsumer"
            storage = StorageClassFacts(waits_for_consumer=waits, provisioner=view.provisioner)
        facts = ClaimFacts(
            name=claim.name,
            storage_class=self._class_of(claim),
            bound=claim.bound,
            lost=claim.lost,
            selected_node=claim.selected_node,
            deleting=claim.deleting,
            for_one_pod=claim.sharing is Sharing.ONE_POD,
            for_one_node=self.serves_one_node(claim.namespace, claim.name),
            is_block=claim.is_block,
        )
        trouble = claim_trouble(facts, storage, pods=pods, nodes=pods)
        if trouble is not None:
            return trouble.message
        # A start waits for other claims, but nobody is evicted before they are bound. Without any
        # class in the cache, classes may just not be readable.
        is_unclear = bool(claim.storage_class) and not self._classes
        waits = storage is not None and storage.waits_for_consumer
        settled = claim.bound or waits or is_unclear
        return "" if settled else f"claim {claim.name} is not bound to a volume"

    def serves_one_node(self, namespace: str, name: str) -> bool:
        """Return whether pods of one node only can use a claim at the same time."""
        view = self._claims.get((namespace, name))
        if view is None or view.sharing is not Sharing.ONE_NODE:
            return False
        volume = self._volumes.get(view.volume)
        driver, _ = self._attachment((namespace, name))
        return self.csi.attaches(driver) and not (volume is not None and volume.unattached)

    def forget(self, uid: str) -> None:
        """Forget the cached answers of a deleted job."""
        self._reach.pop(uid, None)
        self._forget_names(uid)

    def _claims_named(self, job: Job) -> tuple[Claim, ...]:
        known = self._named.get(job.uid)
        if known is None or known[0].spec is not job.spec:
            self._forget_names(job.uid)
            names = self._names_in(_asked_pools(job.spec), job)
            claims = tuple((job.namespace, name) for name in names)
            known = self._named[job.uid] = (job, claims)
            self._naming.update(claims)
        return known[1]

    def _names_in(self, pools: Sequence[str], job: Job) -> Sequence[str]:
        """Return the claims of a job's pods in a pool. Without one pool, those of any pool."""
        mounted = self._mounted.get(pools[0]) if len(pools) == 1 else None
        names = claim_names(job)
        return names if mounted is None else tuple(dict.fromkeys((*names, *mounted.claims)))

    def _forget_names(self, uid: str) -> None:
        _, claims = self._named.pop(uid, (None, ()))
        self._naming.subtract(claims)
        for claim in claims:
            if not self._naming[claim]:
                del self._naming[claim]

    def _special_claims(self, job: Job) -> Sequence[Claim]:
        # Most jobs name no claim, and this runs for each job of a cycle.
        known = self._named.get(job.uid)
        is_known = known is not None and known[0].spec is job.spec
        named = known[1] if known and is_known else self._claims_named(job)
        return [claim for claim in named if claim in self._special] if named else ()

    def _near_others(self, job: Job, claims: Iterable[Claim]) -> Iterable[VolumeReach]:
        """Return the restrictions by the users of claims and by selected nodes."""
        for claim in claims:
            view = self._claims[claim]
            if view.selected_node:
                terms = self._near(view)
                name = f"claim {view.name}, whose volume is made for node {view.selected_node}"
                yield from self._restriction(name, terms, driver="")
            one_pod = view.sharing is Sharing.ONE_POD
            # Most jobs have a claim of their own. Equal ones stay equal, so one search serves all.
            shared = self._naming[claim] > 1
            if shared and (one_pod or self.serves_one_node(*claim)):
                mode = "ReadWriteOncePod" if one_pod else "ReadWriteOnce"
                name = f"claim {view.name} ({mode})"
                yield VolumeReach(name=name, claim="/".join(claim), one_pod=one_pod)
            if not self.serves_one_node(*claim):
                continue
            users = self._users.besides(claim, owner=job.uid)
            # Users on several nodes show that the volume serves several.
            if len({user.node for user in users}) == 1:
                user = users[0]
                name = f"claim {view.name} (ReadWriteOnce), which {user.name} uses on {user.node}"
                yield from self._restriction(name, _on_node(user.node), driver="")

    def _near(self, claim: ClaimView) -> _Terms:
        """Return the nodes that can use a volume that is made for a node. Empty: all.

        Without a known topology and a zone, a volume of one node is used there, and a volume for
        several nodes is used everywhere.
        """
        node, storage = claim.selected_node, self._classes.get(self._class_of(claim))
        labels = self._labels_of(node)
        if labels is None:  # the node is gone, and the provisioner drops the selection
            return ()
        driver = storage.provisioner if storage is not None else ""
        keys = self.csi.topology_of(node, driver)
        if keys == ():
            return ()
        known = [(key, labels[key]) for key in keys or (_ZONE,) if key in labels]
        if not known and keys is None and claim.sharing is Sharing.ANY:
            return ()
        if not known:
            return _on_node(node)
        term = (ExpressionView(key=key, operator="In", values=(value,)) for key, value in known)
        return (tuple(term),)

    def _restricts(self, nodes: Iterable[str]) -> bool:
        """Forget what follows from a change; return whether it may change a decision.

        Args:
            nodes: nodes whose attached volumes may differ now.
        """
        self._reach.clear()
        self.version += 1
        if self.csi.limited:
            self._changed.update(nodes)
        before, self.is_known = self.is_known, self._tells_nodes()
        return before or self.is_known

    def _tells_nodes(self) -> bool:
        return bool(self._restricting or self.csi.limited or self._special)

    def _attachment(self, claim: Claim) -> tuple[str, str]:
        """Return driver and identity of a claim's volume; '' as driver if it is not known."""
        view = self._claims.get(claim)
        if view is None:
            return "", ""
        if view.volume:
            volume = self._volumes.get(view.volume)
            return (volume.driver, volume.handle) if volume is not None else ("", "")
        # Not bound: the volume will be made for this claim.
        storage = self._classes.get(self._class_of(view))
        return (storage.provisioner if storage is not None else ""), "/".join(claim)

    def _restricted(self, job: Job) -> Iterable[VolumeReach]:
        for claim in self._claims_named(job):
            # A missing claim does not restrict the nodes. The pods wait for it where they are
            # placed.
            if claim in self._claims:
                terms, of = self._terms_of_claim(self._claims[claim])
                driver, identity = self._attachment(claim)
                yield from self._restriction(of, terms, driver=driver, volume=identity)
        if self._mounted:
            yield from self._restricted_in_pools(job)
        # Ephemeral volumes have no claim yet. Their class restricts them like an unbound claim.
        for volume_name, name in pod_claim_classes(job, default=self.default_class()):
            storage = self._classes.get(name)
            yield from self._restriction(
                f"{_class(name)} of volume {volume_name}",
                self._terms_of(name),
                driver=storage.provisioner if storage is not None else "",
            )

    def _terms_of_claim(self, claim: ClaimView) -> tuple[_Terms, str]:
        """Return the nodes that a claim's volume reaches (empty: all), and its name."""
        volume = self._volumes.get(claim.volume)
        if claim.unread:
            terms, of = _NOWHERE, "unreadable object"
        elif volume is not None and volume.unread:
            terms, of = _NOWHERE, f"unreadable volume {claim.volume}"
        elif claim.volume:
            terms = volume.affinity if volume is not None else ()
            of = f"volume {claim.volume}{_malformed(terms)}"
        # Not bound: the class decides where a volume can be provisioned.
        else:
            name_of_class = self._class_of(claim)
            terms, of = self._terms_of(name_of_class), _class(name_of_class)
        return terms, f"{of} of claim {claim.name}"

    def _restricted_in_pools(self, job: Job) -> Iterable[VolumeReach]:
        """Return the restrictions by profiles of the pools that a job may choose from."""
        asked = _asked_pools(job.spec)
        for pool, mounted in self._mounted.items() if len(asked) != 1 else ():
            for name in mounted.claims if not asked or pool in asked else ():
                claim = self._claims.get((job.namespace, name))
                terms, of = self._terms_of_claim(claim) if claim is not None else ((), "")
                if terms:
                    outside = (_without(label, value) for label, value in mounted.selector.items())
                    yield VolumeReach(
                        name=f"{of} in pool {pool}", terms=(*_requirements(terms), *outside)
                    )

    def _restriction(
        self, name: str, terms: _Terms, *, driver: str, volume: str = ""
    ) -> Iterable[VolumeReach]:
        """Return the restriction by a volume, or nothing if all nodes reach and attach it."""
        limited_driver = driver if driver in self.csi.limited else ""
        if terms or limited_driver:
            yield VolumeReach(
                name=name,
                terms=_requirements(terms),
                driver=limited_driver,
                volume=volume if limited_driver else "",
            )

    def _class_of(self, claim: ClaimView) -> str:
        """Return the class of a claim that is not bound. Without a name it is the default one."""
        return claim.storage_class if claim.names_class else self.default_class()

    def _terms_of(self, storage_class: str) -> _Terms:
        known = self._classes.get(storage_class)
        return known.topologies if known is not None else ()


def attachable(driver: str) -> str:
    """Return the resource that counts the volumes of a driver, as kube-scheduler names it."""
    return f"{ATTACHABLE}csi-{driver}"


def _of_volume(view: VolumeView | None) -> object:
    return view and (view.affinity, view.driver, view.handle, view.unattached, view.unread)


def _restricts_nodes(view: VolumeView | None) -> bool:
    return view is not None and (bool(view.affinity) or view.unread)


def _of_class(view: StorageClassView | None) -> object:
    return view and (view.topologies, view.provisioner, view.is_default, view.creation_time)


def _put(by_name: dict[str, _View], name: str, view: _View | None) -> _View | None:
    """Store a view, or remove it if it is None. Return the one before."""
    before = by_name.pop(name, None)
    if view is not None:
        by_name[name] = view
    return before


def _class(name: str) -> str:
    return f"storage class {name}"


def _bound_to(claim: ClaimView) -> tuple[object, ...]:
    where = claim.volume, claim.storage_class, claim.selected_node
    return (*where, claim.bound, claim.deleting, claim.sharing, claim.is_block, claim.unread)


def _on_node(name: str) -> _Terms:
    return ((ExpressionView(key=_NODE_NAME, operator="In", values=(name,)),),)


def _asked_pools(spec: TrainingJobSpec) -> tuple[str, ...]:
    return (spec.gpu_pool,) if spec.gpu_pool else tuple(spec.gpu_pools or ())


def _without(label: str, value: str) -> tuple[NodeRequirement, ...]:
    """Return the term of nodes that do not have a label with this value."""
    return (NodeRequirement(key=label, operator=NodeOperator.NOT_IN, values=(value,)),)


def _malformed(terms: _Terms) -> str:
    """Return the words about a requirement that holds for no node, or ''."""
    for each in chain.from_iterable(terms):
        if not is_well_formed(each.operator, each.values):
            words = f"{each.key} {each.operator[:_MAX_OPERATOR]}"
            return f" (its affinity cannot be evaluated: {words})"
    return ""


def _requirements(terms: _Terms) -> tuple[tuple[NodeRequirement, ...], ...]:
    return tuple(
        tuple(
            NodeRequirement.of(key=each.key, operator=each.operator, values=each.values)
            for each in term
        )
        for term in terms
    )
