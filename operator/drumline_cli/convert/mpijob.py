"""Kubeflow's MPIJob (kubeflow.org/v2beta1): a launcher, and workers that serve it.

https://github.com/kubeflow/mpi-operator/blob/master/pkg/apis/kubeflow/v2beta1/types.go
"""

from __future__ import annotations

from typing import Final

from drumline_cli.convert.assembly import PodRole, head_of, job_of_roles
from drumline_cli.convert.fields import Fields
from drumline_cli.convert.model import Conversion, ConversionError, Wanted
from drumline_cli.convert.pytorchjob import run_policy

_SSHD: Final = ("/usr/sbin/sshd", "-De")
"""Command that the operator of MPIJobs runs in a worker without a command."""
_SPEC: Final = {
    "slotsPerWorker": "the host file has a slot for each GPU of a worker",
    "mpiImplementation": "variables give the path of the host file to Open MPI, Intel MPI and"
    " MPICH",
    "launcherCreationPolicy": "the launcher starts after all workers are running",
    "runLauncherAsWorker": "the launcher has no slot in the host file; raise spec.nodes",
}


def convert_mpijob(document: Fields, wanted: Wanted) -> Conversion:
    """Return the MPIJob as a TrainingJob whose launcher is a role.

    Raises:
        ConversionError: it cannot be one.
    """
    head = head_of(document)
    fields = document.below("spec")
    spec = run_policy(fields.below("runPolicy"))
    replicas = fields.below("mpiReplicaSpecs")
    roles: list[PodRole] = []
    for name in ("Launcher", "Worker"):
        if not replicas.has(name):
            raise ConversionError(path=replicas.at(name), problem="is required")
        role = replicas.below(name)
        role.leave_out("restartPolicy", "spec.recovery limits restarts by cause")
        number = role.number("replicas", to="spec.nodes" if name == "Worker" else "spec.roles[0]")
        roles.append(
            PodRole(
                fields=role,
                template=role.below("template"),
                name=name,
                replicas=1 if number is None else number,
                completes=name == "Launcher",
                command=_SSHD if name == "Worker" else (),
            )
        )
    mount = fields.text("sshAuthMountPath")
    fields.notes.check(
        fields.at("sshAuthMountPath") if mount else replicas.path,
        "Drumline creates no SSH keys: create a Secret with them, mount it in the workers and"
        " the launcher, and run sshd without root, as in examples/roles.yaml",
    )
    for name, why in _SPEC.items():
        fields.leave_out(name, why)
    return job_of_roles(document, roles, head=head, spec=spec, wanted=wanted)
