"""Check the roles of a TrainingJob against the rest of its spec, in CEL and in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from drumline_api.base import Rule
from drumline_api.resource_names import (
    GPU,
    KNOWN,
    LEAST_MEMORY,
    has_too_little_memory,
    is_gpu,
    is_known,
    is_more_than_nothing,
    lacks_memory,
)
from drumline_contract import CODE_FOLDER

# The model has these rules as its own: for its type alone it is named here.
if TYPE_CHECKING:
    from drumline_api.trainingjob import TrainingJobSpec

_CODE_PATHS: Final = (CODE_FOLDER, f"{CODE_FOLDER}/")


def _mounts_are_volumes(spec: TrainingJobSpec) -> bool:
    template = spec.template
    names = {volume.name for volume in (template.volumes if template is not None else None) or ()}
    return all(
        mount.name in names for role in spec.roles or () for mount in role.volume_mounts or ()
    )


def _code_is_not_covered(spec: TrainingJobSpec) -> bool:
    # Without code there is nothing that a mount could hide.
    if spec.template is None or spec.template.code is None:
        return True
    mounts = (mount for role in spec.roles or () for mount in role.volume_mounts or ())
    return all(mount.mount_path not in _CODE_PATHS for mount in mounts)


def _resources_are_known(spec: TrainingJobSpec) -> bool:
    # The same three tests as for the job's own resources, in one rule.
    return all(
        is_known(name) and not is_gpu(name) and is_more_than_nothing(amount)
        for role in spec.roles or ()
        for name, amount in (role.resources or {}).items()
    )


ROLE_RULES: Final = (
    Rule(
        rule="!has(self.roles) || has(self.template)",
        holds=lambda spec: spec.roles is None or spec.template is not None,
        message="roles need template, because the bundled trainer has no roles; remove roles, or"
        " run them as a separate job",
        field_path=".roles",
    ),
    Rule(
        rule="!has(self.roles) || !has(self.minNodes)",
        holds=lambda spec: spec.roles is None or spec.min_nodes is None,
        message="roles: the size of a gang with roles is fixed; remove minNodes or roles",
        field_path=".roles",
    ),
    Rule(
        rule="!has(self.roles) || self.roles.all(role, !has(role.volumeMounts)"
        " || role.volumeMounts.all(mount, has(self.template) && has(self.template.volumes)"
        " && self.template.volumes.exists(volume, volume.name == mount.name)))",
        holds=_mounts_are_volumes,
        message="roles: each name of volumeMounts must be one of template.volumes; add the volume"
        " there or fix the name",
        field_path=".roles",
    ),
    Rule(
        rule="!has(self.roles) || !has(self.template) || !has(self.template.code)"
        " || self.roles.all(role, !has(role.volumeMounts) || role.volumeMounts.all(mount,"
        f" !(mount.mountPath in {list(_CODE_PATHS)})))",
        holds=_code_is_not_covered,
        message=f"roles: {CODE_FOLDER} contains the code; choose another mountPath",
        field_path=".roles",
    ),
    Rule(
        rule="!has(self.roles) || self.roles.all(role, !has(role.resources)"
        f" || role.resources.all(key, ({KNOWN}) && !({GPU})"
        " && quantity(string(role.resources[key])).isGreaterThan(quantity('0'))))",
        holds=_resources_are_known,
        message="roles: resources must be cpu, memory, ephemeral-storage, hugepages-<size> or"
        " devices named domain/name, each more than 0; request GPUs with gpusPerNode of"
        " the role",
        field_path=".roles",
    ),
    Rule(
        rule="!has(self.roles) || self.roles.all(role, !has(role.resources)"
        f" || !({has_too_little_memory('role.resources')}))",
        holds=lambda spec: not any(lacks_memory(role.resources or {}) for role in spec.roles or ()),
        message=f"roles: memory must be at least {LEAST_MEMORY}; add its unit, such as 64Gi",
        field_path=".roles",
    ),
)
"""Part of the rules over the whole spec (`spec_rules`)."""
