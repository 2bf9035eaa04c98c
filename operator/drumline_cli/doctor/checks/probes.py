"""Check facts that need pods: image pulls, the limit of locked memory, NetworkPolicies."""

from __future__ import annotations

from collections.abc import Iterator

from drumline_cli.doctor.facts import NodeProbe, Probes, Unread
from drumline_cli.doctor.results import CheckFailed, Passed, Result, Undecided, Warned, some


def images(probes: Probes | None) -> Iterator[Result]:
    """Check whether nodes of every pool pull and start the trainer's image."""
    if probes is None:
        return
    refused = [probe for probe in probes.nodes if probe.problem]
    for probe in refused:
        yield CheckFailed(
            message=f"{probe.node} of pool {probe.pool} cannot run {probes.image}: {probe.problem}",
            fix="correct the image's name, add trainerPod.imagePullSecrets, or give the node"
            " access to the registry; `drumline doctor --probe --image IMAGE` tests another"
            " image",
        )
    ran = [probe.node for probe in probes.nodes if not probe.problem]
    if ran and not refused:
        yield Passed(message=f"{probes.image} starts on {some(ran)}")
    if not probes.nodes:
        yield Undecided(message="no pool has a node to test it on", fix="see the check Pools")


def locked_memory(probes: Probes | None) -> Iterator[Result]:
    """Check whether NCCL may register memory with InfiniBand and RoCE adapters."""
    if probes is None:
        return
    limited = [probe for probe in probes.nodes if probe.locked_memory_bytes is not None]
    ran = [probe.node for probe in probes.nodes if not probe.problem]
    if limited:
        least = min(limited, key=_limit)
        yield Warned(
            message=f"pods on {some(probe.node for probe in limited)} can lock only"
            f" {_limit(least) / 2**20:.3g} MiB of memory: NCCL cannot use InfiniBand or"
            " RoCE there",
            fix="set LimitMEMLOCK=infinity in the unit of containerd or CRI-O on these nodes",
        )
    elif ran:
        yield Passed(message=f"no limit on {some(ran)}")


def _limit(probe: NodeProbe) -> int:
    return probe.locked_memory_bytes or 0


def network_policies(probes: Probes | None) -> Iterator[Result]:
    """Check whether the network plugin enforces NetworkPolicies."""
    if probes is None:
        return
    network = probes.network
    if isinstance(network, Unread):
        yield Undecided(message=network.reason, fix="see the check Image, then run the probe again")
    elif not network.reached_open:
        yield CheckFailed(
            message=f"a pod could not reach another pod of its namespace ({network.path})",
            fix="a NetworkPolicy of the namespace forbids it, or the network between these nodes"
            " is broken: gangs need every pod to reach every other pod",
        )
    elif network.reached_closed:
        yield Warned(
            message=f"a pod reached another pod that a NetworkPolicy blocks ({network.path}): the"
            " network plugin does not enforce policies",
            fix="install a plugin that enforces them (Calico, Cilium, ...); otherwise pods of"
            " all tenants can reach the stores of each other's gangs (docs/security.md)",
        )
    else:
        yield Passed(message=f"enforced ({network.path})")
