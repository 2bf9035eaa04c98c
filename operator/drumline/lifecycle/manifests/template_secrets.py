"""Which Secrets a template names: never one with the token of a job.

The CRD refuses such a template too. This holds for objects that were stored before it did, and
where the CRD of an older release is still installed.
"""

from __future__ import annotations

from collections.abc import Iterator

from drumline.api.base import TOKEN_SECRET_SUFFIX
from drumline.api.podtemplate import PodTemplate
from drumline.api.variables import EnvVar


def template_error(template: PodTemplate) -> str | None:
    """Why a template is refused; names the field. None if it is valid."""
    for field, secret in _named(template):
        if secret.endswith(TOKEN_SECRET_SUFFIX):
            return (
                f"template.{field}: Secret {secret} holds the token of a job; name another Secret"
            )
    return None


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
    for index, source in enumerate(template.env_from or []):
        if source.secret_ref is not None:
            yield f"envFrom[{index}].secretRef", source.secret_ref.name
    for name in template.image_pull_secrets or []:
        yield "imagePullSecrets", name


def _variables(variables: list[EnvVar] | None, *, at: str) -> Iterator[tuple[str, str]]:
    for variable in variables or []:
        source = variable.value_from
        if source is not None and source.secret_key_ref is not None:
            yield f"{at}[{variable.name}].valueFrom.secretKeyRef", source.secret_key_ref.name
