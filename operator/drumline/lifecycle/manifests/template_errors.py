"""Find errors of a template that its schema cannot reject, or that an older schema accepted.

The current CRD also rejects a template that mounts the Secret of a job's token. This module checks
it again for objects that were stored under the CRD of an older release.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from drumline_api.base import TOKEN_SECRET_SUFFIX
from drumline_api.podtemplate import PodTemplate
from drumline_api.role import RoleSpec
from drumline_api.variables import EnvFromSource, EnvVar
from drumline_contract import PROGRESS_GROUPS, ContractError, LinePattern, PythonProgram


def template_error(template: PodTemplate, roles: Sequence[RoleSpec] = ()) -> str | None:
    """Return why a template or a role beside it is refused, with the field. None: it is not."""
    return _secret_error(template, roles) or _pattern_error(template) or _preload_error(template)


def _secret_error(template: PodTemplate, roles: Sequence[RoleSpec]) -> str | None:
    named = [
        *((f"template.{field}", secret) for field, secret in _named(template)),
        *((f"roles[{role.name}].{field}", secret) for role in roles for field, secret in _of(role)),
    ]
    for field, secret in named:
        if secret.endswith(TOKEN_SECRET_SUFFIX):
            return f"{field}: Secret {secret} holds the token of a job; name another Secret"
    return None


def _of(role: RoleSpec) -> Iterator[tuple[str, str]]:
    yield from _variables(role.env, at="env")
    yield from _sources(role.env_from)


def _named(template: PodTemplate) -> Iterator[tuple[str, str]]:
    for volume in template.volumes or []:
        if volume.secret is not None:
            yield f"volumes[{volume.name}].secret", volume.secret.name
        if volume.csi is not None and volume.csi.node_publish_secret_ref is not None:
            name = volume.csi.node_publish_secret_ref.name
            yield f"volumes[{volume.name}].csi.nodePublishSecretRef", name
    yield from _variables(template.env, at="env")
    for container in template.init_containers or []:
        yield from _variables(container.env, at=f"initContainers[{container.name}].env")
    yield from _sources(template.env_from)
    for sidecar in template.sidecars or []:
        at = f"sidecars[{sidecar.name}]."
        yield from _variables(sidecar.env, at=f"{at}env")
        yield from _sources(sidecar.env_from, at=f"{at}envFrom")
    for name in template.image_pull_secrets or []:
        yield "imagePullSecrets", name


def _sources(
    sources: Sequence[EnvFromSource] | None, *, at: str = "envFrom"
) -> Iterator[tuple[str, str]]:
    for index, source in enumerate(sources or []):
        if source.secret_ref is not None:
            yield f"{at}[{index}].secretRef", source.secret_ref.name


def _variables(variables: list[EnvVar] | None, *, at: str) -> Iterator[tuple[str, str]]:
    for variable in variables or []:
        source = variable.value_from
        if source is not None and source.secret_key_ref is not None:
            yield f"{at}[{variable.name}].valueFrom.secretKeyRef", source.secret_key_ref.name


def _pattern_error(template: PodTemplate) -> str | None:
    """Return why the agent could not use a template's patterns of progress."""
    patterns = (template.progress and template.progress.patterns) or []
    # The agent would fail at the pattern in each pod. Report it before the job is queued.
    for index, text in enumerate(patterns):
        field = f"template.progress.patterns[{index}]"
        try:
            groups = LinePattern.parse(text).groups
        except ContractError as error:
            return f"{field}: {error}"
        unknown = [name for name in groups if name not in PROGRESS_GROUPS]
        if unknown or not groups:
            name = f"has a group {unknown[0]}" if unknown else "has no named group"
            return f"{field}: {text!r} {name}; its groups must be {', '.join(PROGRESS_GROUPS)}"
    return None


def _preload_error(template: PodTemplate) -> str | None:
    """Return why the agent could not start standbys for a template's command."""
    if not template.preload:
        return None
    if template.launch in {None, "Direct"}:
        return "template.preload: launch must be PerGpu or PerPod; add launch"
    try:
        PythonProgram.parse([*(template.command or []), *(template.args or [])])
    except ContractError as error:
        return f"template.{error}"
    return None
