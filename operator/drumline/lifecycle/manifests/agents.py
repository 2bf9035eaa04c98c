"""The agent in a job's pods: its environment, and how it comes into pods with a user's image.

bundled trainer            the container's own program (`containers`)
template, Direct, a gang   an init container, which waits for the gang and exits (join)
template, PerGpu, PerPod   the container's program, from a folder that an init container fills
role beside PerGpu, PerPod no agent; an init container fetches the job's code, if it brings any
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from drumline.lifecycle.manifests.pod_input import PodInput
from drumline.lifecycle.manifests.volumes import TOKEN_MOUNT, token_volume
from drumline_api.code import CodeSource
from drumline_api.podtemplate import PodTemplate
from drumline_api.supervision import EndNoticeDelivery
from drumline_contract import (
    AGENT_PORT,
    BUNDLE_FOLDER,
    BUNDLE_TARGET,
    CODE_FOLDER,
    CODE_PART_KEY,
    CODE_PARTS_FOLDER,
    GANG_FOLDER,
    Env,
    Launch,
    LaunchSettings,
    NoticeSignal,
)

Json = dict[str, Any]

JOIN_CONTAINER: Final = "drumline-join"
INSTALL_CONTAINER: Final = "drumline-agent"
INIT_RESOURCES: Final = {"cpu": "500m", "memory": "128Mi"}
"""Requests and limits of both init containers. Both are equal, because the QoS class of a pod
counts init containers too. Not a whole CPU: the static CPU manager would pin the init container to
CPUs of any NUMA node, to which the main container is then tied, or which leak
(kubernetes/kubernetes#94220, #112228)."""
RESTRICTED: Final[Json] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": False,
    "capabilities": {"drop": ["ALL"]},
}
"""The restricted Pod Security Standard's demands on a container."""
READ_ONLY: Final[Json] = {**RESTRICTED, "readOnlyRootFilesystem": True}
AGENT_ENDPOINT: Final[Json] = {
    "ports": [{"name": "agent", "containerPort": AGENT_PORT}],
    "readinessProbe": {
        "httpGet": {"path": "/readyz", "port": AGENT_PORT},
        "periodSeconds": 1,
        "timeoutSeconds": 5,
        "failureThreshold": 3,
    },
}
"""Port and probe of a container whose program is the agent. No liveness probe: the operator judges
agents, and a busy agent must not lose its ranks."""
_SUPERVISOR: Final = (f"{BUNDLE_FOLDER}/bin/python3", "-I", "-m", "drumline_agent")
"""Isolated: PYTHONHOME and PYTHONPATH of the user's image are meant for the user's Python."""
_BUNDLE_VOLUME: Final[Json] = {"name": "drumline-bundle", "emptyDir": {}}
_UID, _ADDRESS = (
    {"name": str(name), "valueFrom": {"fieldRef": {"fieldPath": path}}}
    for name, path in ((Env.POD_UID, "metadata.uid"), (Env.POD_IP, "status.podIP"))
)
_GANG_VOLUME: Final[Json] = {"name": "drumline-gang", "emptyDir": {}}
_GANG_MOUNT: Final[Json] = {"name": "drumline-gang", "mountPath": GANG_FOLDER}
_HOSTS_MOUNT: Final[Json] = {
    "name": "drumline-gang",
    "mountPath": "/etc/hosts",
    "subPath": "hosts",
    "readOnly": True,
}
"""The gang's host names, in the file that the resolver reads."""
_CODE_VOLUME: Final[Json] = {"name": "drumline-code", "emptyDir": {}}
_CODE_MOUNT: Final[Json] = {"name": "drumline-code", "mountPath": CODE_FOLDER}
"""The folder with the code. Writable: programs keep caches and logs where they are started."""
_CODE_PARTS_MOUNT: Final[Json] = {
    "name": "drumline-code-parts",
    "mountPath": CODE_PARTS_FOLDER,
    "readOnly": True,
}


def agent_environment(pod: PodInput) -> list[Json]:
    """Return the variables that identify the job and the member to an agent."""
    return [*_variables(_identity(pod)), _UID, _ADDRESS]


def _identity(pod: PodInput) -> dict[Env, str]:
    job = pod.job
    return {
        Env.NAMESPACE: job.namespace,
        Env.JOB: job.name,
        Env.JOB_UID: job.uid,
        Env.INDEX: str(pod.member.index),
        Env.GPUS_PER_NODE: str(job.spec.gpus_per_node),
        Env.GENERATION: str(pod.member.pod_generation),
    }


def with_agent(pod: PodInput, spec: Json, *, template: PodTemplate) -> Json:
    """Add the agent to the containers and volumes of a template's pod.

    Args:
        pod: pod of the template.
        spec: pod spec with the main container as the kubelet would start it.
        template: template of the pod.
    """
    if pod.launch is not None:
        return _supervised(pod, spec, template=template, launch=pod.launch)
    if pod.joins:
        return _joined(pod, spec)
    if pod.role is not None and template.code is not None:
        return _with_code(pod, spec, code=template.code)
    return spec


def _supervised(pod: PodInput, spec: Json, *, template: PodTemplate, launch: Launch) -> Json:
    """Add an agent that starts the command.

    The command and its arguments stay in `args`, so that the kubelet expands `$(NAME)` in them as
    in any container. The launcher's variables are not variables of the container: the agent sets
    them for each attempt, and expands them likewise.
    """
    (container,) = spec["containers"]
    code = template.code
    # The agent is process 1. The command becomes its arguments.
    variables = {
        Env.LAUNCH: _launch_settings(template, launch).encode(),
        Env.GRACE_SECONDS: str(pod.grace_seconds),
        **({Env.CODE_DIGEST: code.digest} if code else {}),
    }
    container = {
        **({"workingDir": CODE_FOLDER} if code else {}),
        **container,
        "command": [*_SUPERVISOR, "command", "--"],
        "args": [*(template.command or []), *(template.args or [])],
        "env": [*agent_environment(pod), *_variables(variables), *container["env"]],
        **AGENT_ENDPOINT,
        "volumeMounts": [
            *container["volumeMounts"],
            *([_CODE_MOUNT] if code else []),
            {"name": "drumline-bundle", "mountPath": BUNDLE_FOLDER, "readOnly": True},
            _GANG_MOUNT,  # writable: the agent renews the gang's files for each generation
            _HOSTS_MOUNT,
            TOKEN_MOUNT,
        ],
    }
    # The init container copies the agent before the main container starts.
    return {
        **_with_install(pod, spec, code=code),
        "containers": [container],
        "volumes": [*spec["volumes"], *_install_volumes(code), token_volume(pod)],
    }


def _launch_settings(template: PodTemplate, launch: Launch) -> LaunchSettings:
    notice = template.notice or EndNoticeDelivery()
    events = template.progress.tensor_board if template.progress else None
    return LaunchSettings(
        launch=launch,
        notice_signal=NoticeSignal(notice.signal),
        notice_file=notice.file or "",
        watches_activity=template.hang_detection == "Activity",
        progress_patterns=tuple((template.progress and template.progress.patterns) or ()),
        events_folder=events.folder if events else "",
        loss_tag=(events.loss_tag or "") if events else "",
        preload=tuple(template.preload or ()),
    )


def _joined(pod: PodInput, spec: Json) -> Json:
    """Add an init container that waits for the gang before the kubelet starts the command."""
    (container,) = spec["containers"]
    mounts = [*container["volumeMounts"], {**_GANG_MOUNT, "readOnly": True}, _HOSTS_MOUNT]
    join = _init_container(
        name=JOIN_CONTAINER,
        # The API server tracks the owner of each variable, but a command as a whole. The image is
        # the operator's own, so its program reads variables from the command.
        program=("join", *(f"{name}={value}" for name, value in _identity(pod).items())),
        variables=[_UID, _ADDRESS],
        image=pod.settings.join_image,
        mounts=[_GANG_MOUNT, TOKEN_MOUNT],
    )
    return {
        **spec,
        "containers": [{**container, "volumeMounts": mounts}],
        # Last: what the pod fetches first, it fetches while others do.
        "initContainers": [*spec.get("initContainers", []), join],
        "volumes": [*spec["volumes"], _GANG_VOLUME, token_volume(pod)],
    }


def _with_code(pod: PodInput, spec: Json, *, code: CodeSource) -> Json:
    """Add the job's code to a pod without an agent."""
    (container,) = spec["containers"]
    mounts = [*container["volumeMounts"], _CODE_MOUNT]
    return {
        **_with_install(pod, spec, code=code),
        "containers": [{"workingDir": CODE_FOLDER, **container, "volumeMounts": mounts}],
        "volumes": [*spec["volumes"], *_install_volumes(code)],
    }


def _install_volumes(code: CodeSource | None) -> list[Json]:
    """Return what the install container fills, and the parts of the code that it unpacks."""
    if code is None:
        return [_BUNDLE_VOLUME, _GANG_VOLUME]
    sources = [
        {"configMap": {"name": name, "items": [{"key": CODE_PART_KEY, "path": str(number)}]}}
        for number, name in enumerate(code.config_maps)
    ]
    parts = {"name": "drumline-code-parts", "projected": {"sources": sources}}
    return [parts, _CODE_VOLUME, _BUNDLE_VOLUME, _GANG_VOLUME]


def _with_install(pod: PodInput, spec: Json, *, code: CodeSource | None) -> Json:
    """Add the init container that brings the agent and the code."""
    install = _init_container(
        name=INSTALL_CONTAINER,
        program=("install",),
        variables=[_ADDRESS, *(_variables({Env.CODE_DIGEST: code.digest}) if code else [])],
        image=pod.agent_image,
        mounts=[
            {"name": "drumline-bundle", "mountPath": BUNDLE_TARGET},
            _GANG_MOUNT,
            *([_CODE_MOUNT, _CODE_PARTS_MOUNT] if code else []),
        ],
    )
    # What it writes where it fails is how the pod has ended, in status.
    install["terminationMessagePolicy"] = "FallbackToLogsOnError"
    return {**spec, "initContainers": [*spec.get("initContainers", []), install]}


def _init_container(
    *,
    name: str,
    program: Sequence[str],
    variables: list[Json],
    image: str,
    mounts: Sequence[Json],
) -> Json:
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-m", "drumline_agent", *program],
        "env": variables,
        "resources": {"requests": dict(INIT_RESOURCES), "limits": dict(INIT_RESOURCES)},
        "securityContext": READ_ONLY,
        "volumeMounts": list(mounts),
    }


def _variables(values: dict[Env, str]) -> list[Json]:
    return [{"name": str(name), "value": value} for name, value in values.items()]
