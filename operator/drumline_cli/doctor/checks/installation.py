"""The API server, the custom resources and the operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from drumline_cli.doctor.facts import OperatorFact, PriorityFact, SchemaFact, ServerVersion, Unread
from drumline_cli.doctor.results import CheckFailed, Passed, Result, Undecided, Warned, some
from drumline_cli.formatting import duration, many

OLDEST: Final = (1, 33)
"""The oldest Kubernetes that the chart installs on."""
GROUPS: Final = (
    "admissionregistration.k8s.io/v1",
    "coordination.k8s.io/v1",
    "events.k8s.io/v1",
    "flowcontrol.apiserver.k8s.io/v1",
    "networking.k8s.io/v1",
    "policy/v1",
    "scheduling.k8s.io/v1",
    "storage.k8s.io/v1",
)
"""API groups that the chart and the operator use, besides the core."""
SYSTEM_NAMESPACE: Final = "drumline-system"
_STALE_LEASES: Final = 4
"""A Lease that is that many of its durations old has no successor."""


def install_in(namespace: str) -> str:
    """Return the command that installs Drumline in a namespace."""
    return f"helm upgrade --install drumline helm/drumline -n {namespace} --create-namespace"


def kubernetes(server: ServerVersion, groups: frozenset[str]) -> Iterator[Result]:
    """Check whether the API server serves what Drumline uses."""
    oldest = f"{OLDEST[0]}.{OLDEST[1]}"
    if (server.major, server.minor) < OLDEST:
        yield CheckFailed(
            message=f"{server.text} is older than {oldest}, the first version that Drumline"
            " supports",
            fix=f"upgrade the control plane to {oldest} or newer",
        )
    # A group can be disabled even in a new version.
    missing = [group for group in GROUPS if group not in groups]
    if missing:
        yield CheckFailed(
            message=f"the API server does not serve {some(missing)}",
            fix="enable them: a --runtime-config flag of kube-apiserver disables them",
        )
    # Success is reported only if the version is new enough as well.
    elif (server.major, server.minor) >= OLDEST:
        yield Passed(
            message=f"{server.text} serves all {len(GROUPS)} API groups that Drumline uses"
        )


def custom_resources(
    schemas: tuple[SchemaFact, ...],
    expected: Mapping[str, frozenset[str]],
    namespace: str = SYSTEM_NAMESPACE,
) -> Iterator[Result]:
    """Check whether the installed custom resources have the fields that this program supports."""
    install = install_in(namespace)
    # Before the installation this is normal, so it is a warning.
    if not schemas:
        yield Warned(message="Drumline's custom resources are not installed", fix=install)
        return
    installed = {schema.kind: schema.fields for schema in schemas}
    # Each kind has exactly one result, so that users can count them.
    for kind, fields in expected.items():
        if kind not in installed:
            yield CheckFailed(
                message=f"{kind} is not installed, but other Drumline kinds are", fix=install
            )
        # A missing field is worse than an unknown one: the server drops it silently.
        elif lacking := fields - installed[kind]:
            yield CheckFailed(
                message=f"the installed {kind} lacks {some(lacking)}: it is older than this"
                " program, and the API server drops these fields",
                fix="upgrade the chart, or: kubectl apply --server-side -f crds/",
            )
        # A newer cluster works, but this program cannot show its fields.
        elif beyond := installed[kind] - fields:
            yield Warned(
                message=f"the installed {kind} has {some(beyond)}, which this program does not"
                " support: this program is older than the cluster's Drumline",
                fix="install the drumline command in the cluster's version",
            )
        else:
            yield Passed(message=f"{kind} matches this program, {len(fields)} fields")


def operator(
    installed: OperatorFact | None,
    schemas: tuple[SchemaFact, ...] = (),
    namespace: str = SYSTEM_NAMESPACE,
) -> Iterator[Result]:
    """Check whether a process of the operator runs and leads."""
    if installed is None:
        # With its custom resources there, it is probably in another namespace.
        elsewhere = "find it with helm list -A and set --system-namespace, or: "
        yield Warned(
            message=f"the operator is not installed in namespace {namespace}",
            fix=f"{elsewhere if schemas else ''}{install_in(namespace)}",
        )
        return
    where = f"-n {installed.namespace}"
    pods = f"kubectl get pods {where} -l app.kubernetes.io/component=operator"
    # Without a ready pod the lease says nothing.
    if not installed.ready_replicas:
        yield CheckFailed(
            message=f"none of {many(installed.replicas, 'replica')} is ready", fix=f"see {pods}"
        )
        return
    match installed.lease:
        # A user without rights on leases must not see a failure.
        case Unread(reason=reason):
            yield Undecided(
                message=f"cannot determine whether a process leads: {reason}",
                fix=f"kubectl get lease {where} drumline-operator",
            )
        case None:
            yield CheckFailed(message="no process holds the Lease drumline-operator", fix=pods)
        # One missed renewal is normal. Several mean that no successor took over.
        case lease if lease.renewed_ago_seconds > _STALE_LEASES * lease.duration_seconds:
            yield CheckFailed(
                message=f"{lease.holder} holds the Lease drumline-operator but last renewed it"
                f" {duration(lease.renewed_ago_seconds)} ago: no jobs are placed",
                fix=f"kubectl logs {where} deploy/drumline-operator --prefix --all-pods",
            )
        case lease:
            yield Passed(
                message=f"{installed.ready_replicas} of {many(installed.replicas, 'replica')}"
                f" ready, {lease.holder} leads"
            )


def priorities(
    classes: tuple[PriorityFact, ...], installed: OperatorFact | None
) -> Iterator[Result]:
    """Check whether other pods may preempt single pods of a gang."""
    if installed is None:
        yield Passed(
            message="the operator is not installed, so training pods have no priority class yet"
        )
        return
    values = {priority.name: priority.value for priority in classes}
    name = installed.priority_class
    if name not in values:
        yield CheckFailed(
            message=f"training pods have PriorityClass {name}, which does not exist: the API"
            " server rejects them",
            fix="create it, or let the chart create it: --set trainingPriorityClass.create=true"
            f" (and {name} as its name)",
        )
        return
    # A Pod with a higher class could evict one pod, which stops the gang.
    above = {
        priority.name
        for priority in classes
        if priority.preempts
        and priority.value > values[name]
        # System classes are for the cluster's own components.
        and not priority.name.startswith("system-")
    }
    if above:
        yield Warned(
            message=f"pods of {some(above)} can preempt single training pods, which stops whole"
            " gangs",
            fix="raise the chart's trainingPriorityClass.value above them, or set their"
            " preemptionPolicy to Never",
        )
    else:
        yield Passed(message=f"only system classes can preempt pods of {name}")
