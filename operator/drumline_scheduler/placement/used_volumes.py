"""Volumes and claims that gangs of this cycle use, beside those of the snapshot.

A node attaches a limited number of volumes of some CSI drivers. A ReadWriteOnce claim serves pods
of one node, and a ReadWriteOncePod claim one pod. Two gangs of one cycle must not take the last
place at a driver, or one claim, because the pods of one of them would wait for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from drumline_scheduler.model import Gang, NodeOperator, NodeRequirement, VolumeReach
from drumline_scheduler.placement.eligibility import NODE_NAME, node_filter_of
from drumline_scheduler.placement.pool_view import PoolView
from drumline_scheduler.undo import Undo


class UsedVolumes:
    """Volumes and claims of the gangs of a cycle, by the places that they got."""

    def __init__(self) -> None:
        self._attached: dict[tuple[str, str], dict[str, frozenset[str]]] = {}
        """Volumes of each gang by node and CSI driver, and by uid of the gang."""
        self._users: dict[str, dict[str, tuple[str, frozenset[str]]]] = {}
        """Key and nodes of each user of a claim, by claim and uid of the gang."""

    def copy(self) -> UsedVolumes:
        """Return a value that can be changed separately."""
        clone = UsedVolumes()
        clone._attached = {key: dict(volumes) for key, volumes in self._attached.items()}
        clone._users = {claim: dict(users) for claim, users in self._users.items()}
        return clone

    def note(self, *, gang: Gang, nodes: Sequence[str], view: PoolView) -> None:
        """Note the places that a gang got, or that are kept until its victims have left."""
        drivers = {volume.driver for volume in gang.volumes if volume.driver and volume.volume}
        for name in {*nodes} if drivers else ():
            if view.tree.nodes[view.ordinal_of[name]].attached:
                for driver in drivers:
                    own = (each.volume for each in gang.volumes if each.driver == driver)
                    users = self._attached.setdefault((name, driver), {})
                    users[gang.uid] = frozenset(filter(None, own))
        for volume in gang.volumes:
            if volume.claim:
                users_of_claim = self._users.setdefault(volume.claim, {})
                users_of_claim[gang.uid] = gang.key, frozenset(nodes)

    def forget(self, gang: Gang) -> Undo:
        """Forget a gang that lost its places, and return the undo."""
        uid = gang.uid
        attached = [users for users in self._attached.values() if uid in users]
        claims = [users for users in self._users.values() if uid in users]
        volumes = [users.pop(uid) for users in attached]
        places = [users.pop(uid) for users in claims]

        def undo() -> None:
            for users, own in zip(attached, volumes, strict=True):
                users[uid] = own
            for users, own in zip(claims, places, strict=True):
                users[uid] = own

        return undo

    def sparing(self, gang: Gang, *, view: PoolView) -> Gang:
        """Return a gang that avoids the nodes on which it would lack a volume."""
        if not (self._attached or self._users):
            return gang
        reaches = (*self._beside_users(gang), *self._with_room(gang, view=view))
        return replace(gang, volumes=(*gang.volumes, *reaches)) if reaches else gang

    def _beside_users(self, gang: Gang) -> Iterable[VolumeReach]:
        for volume in gang.volumes:
            users = self._users.get(volume.claim, {}) if volume.claim else {}
            beside = [user for uid, user in users.items() if uid != gang.uid]
            nodes = frozenset[str]().union(*(names for _, names in beside))
            # Users on several nodes show that the volume serves several.
            if beside and (volume.one_pod or len(nodes) == 1):
                here = _named(NodeOperator.IN, () if volume.one_pod else nodes)
                name = f"{volume.name}, which {beside[0][0]} gets in this cycle"
                yield VolumeReach(name=name, terms=((here,),))

    def _with_room(self, gang: Gang, *, view: PoolView) -> Iterable[VolumeReach]:
        if not self._attached:
            return
        full, node_filter = set[str](), node_filter_of(gang)
        for name in {name for name, _ in self._attached} & view.ordinal_of.keys():
            node = view.tree.nodes[view.ordinal_of[name]]
            attached = tuple(
                replace(
                    each,
                    volumes=each.volumes.union(
                        *self._attached.get((name, each.driver), {}).values()
                    ),
                )
                for each in node.attached
            )
            if node_filter.full_driver(replace(node, attached=attached)):
                full.add(name)
        if full:
            elsewhere = _named(NodeOperator.NOT_IN, full)
            yield VolumeReach(name="volumes beside those of other jobs", terms=((elsewhere,),))


def _named(operator: NodeOperator, nodes: Iterable[str]) -> NodeRequirement:
    return NodeRequirement(key=NODE_NAME, operator=operator, values=tuple(sorted(nodes)))
