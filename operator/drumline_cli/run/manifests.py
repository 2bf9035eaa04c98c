"""The objects of a run: a TrainingJob, and the ConfigMaps with its code."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

from drumline_api.base import GROUP, VERSION
from drumline_cli.errors import BadInput
from drumline_cli.jobs.clone import LABEL_SWEEP, PARAMETERS, SHARED_CODE
from drumline_cli.run.code_from import CodeFrom
from drumline_cli.run.pack import PackedFolder
from drumline_cli.run.requirements import with_requirements
from drumline_cli.run.variables import JobVariables
from drumline_contract import CODE_PART_KEY, MAX_CODE_PART_BYTES, starts_ranks

Json = dict[str, Any]

# 20 hexadecimal digits make a collision within a namespace practically impossible.
_DIGITS_IN_NAME: Final = 20
_MAX_STEM_CHARS: Final = 40
"""Characters of a job's 50 that leave space for the random letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """Request for a job, checked as far as possible on this machine."""

    name: str
    namespace: str | None
    queue: str
    image: str
    nodes: int
    gpus: int
    command: tuple[str, ...]
    launch: str
    env: tuple[tuple[str, str], ...] = ()
    variables: JobVariables = field(default_factory=JobVariables)
    """Variables from Secrets and ConfigMaps, and logins of registries."""
    warnings: tuple[str, ...] = ()
    """Sentences for the user about what was asked for."""
    claims: tuple[tuple[str, str], ...] = ()
    """Claims and where they are mounted."""
    resources: tuple[tuple[str, str], ...] = ()
    options: Json = field(default_factory=dict[str, Any])
    """Further fields of the spec."""
    code_from: CodeFrom | None = None
    """Place of the code, if it is not packed."""
    requirements: str = ""
    """Packages that the image lacks, as a requirements file."""
    preload: tuple[str, ...] = ()
    """Modules that are imported before a rank needs them."""
    progress: tuple[str, ...] = ()
    """Patterns of the lines that show a step and a loss."""
    parameters: str = ""
    """Parameters of a sweep's job, for people: `lr=3e-4 seed=1`."""


def launch_of(command: Sequence[str], *, ranks: int) -> str:
    """Return PerPod for a program that starts ranks itself, and PerGpu for any other.

    Args:
        command: program and arguments.
        ranks: GPUs of all pods. One rank is the same in both ways.

    Raises:
        BadInput: a shell runs the command, so nobody can tell.
    """
    # None means that a shell decides. With one rank both ways are equal.
    launches = starts_ranks(command)
    if launches is None and ranks > 1:
        raise BadInput(
            f"{command[0]} may start a launcher such as torchrun: add --launch PerPod to start it"
            " once for each pod, or --launch PerGpu for each GPU"
        )
    return "PerPod" if launches else "PerGpu"


def job_stem(command: Sequence[str]) -> str:
    """Return the script's name as the beginning of a job's name.

    Without a script: the program's name.
    """
    # The first script names the job. Options and arguments often change.
    scripts = [word for word in command if word.endswith((".py", ".sh"))]
    stem = PurePosixPath(scripts[0] if scripts else command[0]).stem.lower()
    words = re.sub(r"[^a-z0-9]+", "-", stem).strip("-")[:_MAX_STEM_CHARS].rstrip("-")
    # A DNS label must begin with a letter here.
    return words if words[:1].isalpha() else f"run-{words}".rstrip("-")


def job_manifest(request: RunRequest, code: Json | None) -> Json:
    """Return the TrainingJob.

    Args:
        request: what was asked for.
        code: its `template.code`; None: the image has it.
    """
    template: Json = {
        "image": request.image,
        "launch": request.launch,
        "command": list(request.command),
    }
    if request.preload:
        template["preload"] = list(request.preload)
    if request.progress:
        template["progress"] = {"patterns": list(request.progress)}
    if code is not None:
        template["code"] = code
    variables = request.variables
    env = [{"name": name, "value": value} for name, value in request.env]
    for field_name, values in (
        ("env", [*env, *variables.env]),
        ("envFrom", [*variables.env_from]),
        ("imagePullSecrets", [*variables.pull_secrets]),
    ):
        if values:
            template[field_name] = values
    if request.claims:
        template["volumes"] = [
            {"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": claim}}
            for number, (claim, _) in enumerate(request.claims)
        ]
        template["volumeMounts"] = [
            {"name": f"claim-{number}", "mountPath": folder}
            for number, (_, folder) in enumerate(request.claims)
        ]
    if request.code_from is not None:
        template = request.code_from.within(template)
    if request.requirements:
        template = with_requirements(template, request.requirements, env=template.get("env", []))
    spec: Json = {
        "queue": request.queue,
        "nodes": request.nodes,
        "gpusPerNode": request.gpus,
        **request.options,
        **({"resources": dict(request.resources)} if request.resources else {}),
        "template": template,
    }
    metadata: Json = {"name": request.name}
    if request.namespace:
        metadata["namespace"] = request.namespace
    if request.parameters:
        metadata["labels"] = {LABEL_SWEEP: request.options["sweep"]["name"]}
        metadata["annotations"] = {PARAMETERS: request.parameters}
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "TrainingJob",
        "metadata": metadata,
        "spec": spec,
    }


def code_source(packed: PackedFolder, parts: Sequence[Json]) -> Json:
    """Return a job's `template.code`, from the packed folder and its ConfigMaps."""
    return {
        "digest": packed.digest,
        "configMaps": [part["metadata"]["name"] for part in parts],
    }


def code_manifests(
    packed: PackedFolder, *, namespace: str | None = None, prefix: str = SHARED_CODE
) -> list[Json]:
    """Return the ConfigMaps with the parts of the code.

    Equal code has equal ones, so it is stored once.

    Immutable: kubelets read them once and do not watch them.

    Args:
        packed: the code.
        namespace: namespace of the job. None: not given.
        prefix: prefix of their names. SHARED_CODE objects are deleted with their last owner.
    """
    # The name depends on the content, so equal code is stored once.
    digits = packed.digest.removeprefix("sha256:")[:_DIGITS_IN_NAME]
    place = {"namespace": namespace} if namespace else {}
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": f"{prefix}-{digits}-{number}",
                **place,
                "labels": {"app.kubernetes.io/name": "drumline", f"{GROUP}/code": digits},
            },
            # An immutable ConfigMap saves the kubelets a watch, and nobody can change the code.
            "immutable": True,
            "binaryData": {CODE_PART_KEY: base64.b64encode(part).decode()},
        }
        for number, part in enumerate(_parts(packed.content))
    ]


def _parts(content: bytes) -> list[bytes]:
    # A ConfigMap is limited to 1 MiB, so the archive is cut.
    size = MAX_CODE_PART_BYTES
    return [content[at : at + size] for at in range(0, len(content), size)]
