"""Define environment variables of a template's containers, and the names that are reserved."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import Field

from drumline_api.base import TOKEN_SECRET_SUFFIX, ApiModel, Rule, Subdomain

# A template that set one of these would split the gang or connect it to another one.
LAUNCHER_ENV: Final = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "NNODES",
    "NODE_RANK",
    "NPROC_PER_NODE",
    "WORLD_SIZE",
    "RANK",
    "LOCAL_RANK",
    "PET_NNODES",
    "PET_NODE_RANK",
    "PET_NPROC_PER_NODE",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
    "JAX_COORDINATOR_ADDRESS",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
    "OMPI_MCA_orte_default_hostfile",
    "PRTE_MCA_prte_default_hostfile",
    "I_MPI_HYDRA_HOST_FILE",
    "HYDRA_HOST_FILE",
)
"""Variables that the operator sets for torchrun, JAX and MPI."""

# NVIDIA_VISIBLE_DEVICES=all would give a container every GPU of its node.
RESERVED_ENV: Final = (
    "LD_AUDIT",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_VISIBLE_DEVICES",
    *LAUNCHER_ENV,
)
"""LAUNCHER_ENV, and variables that affect the loader or the container runtime. A template with such
a name is rejected."""


class KeyRef(ApiModel):
    """A key of a Secret or ConfigMap in the job's namespace."""

    name: Subdomain
    """Name of the Secret or ConfigMap."""
    key: Annotated[str, Field(min_length=1, max_length=253)]
    """Key in the Secret or ConfigMap."""
    optional: bool = False
    """If true, the pod also starts without the key. Default: false."""


class EnvVarSource(ApiModel):
    """Source of a variable's value. Set exactly one."""

    secret_key_ref: KeyRef | None = None
    """A key of a Secret in the job's namespace."""
    config_map_key_ref: KeyRef | None = None
    """A key of a ConfigMap in the job's namespace."""

    rules: ClassVar[tuple[Rule, ...]] = (
        # Presence instead of a discriminator, as in the core API.
        Rule(
            rule="has(self.secretKeyRef) != has(self.configMapKeyRef)",
            message="valueFrom needs exactly one of secretKeyRef and configMapKeyRef",
        ),
        Rule(
            rule="!has(self.secretKeyRef)"
            f" || !self.secretKeyRef.name.endsWith('{TOKEN_SECRET_SUFFIX}')",
            message=f"secretKeyRef: Secrets named ...{TOKEN_SECRET_SUFFIX} hold the tokens of jobs;"
            " name another Secret",
            field_path=".secretKeyRef",
        ),
    )


class EnvVar(ApiModel):
    """An environment variable of the container."""

    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    """Name of the variable. Names that the operator sets (DRUMLINE_..., MASTER_ADDR, RANK, ...) and
    names of the loader and the GPU runtime (LD_PRELOAD, NVIDIA_VISIBLE_DEVICES, ...) are
    rejected."""
    value: Annotated[str, Field(max_length=8192)] | None = None
    """Value as text. `$(OTHER)` is expanded as in any container."""
    value_from: EnvVarSource | None = None
    """Value from a Secret or ConfigMap."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            # A list literal in CEL. Its cost is the number of names, which is fixed.
            rule=f"!self.name.startsWith('DRUMLINE_') && !(self.name in {list(RESERVED_ENV)!r})",
            message="name: Drumline sets this variable, or it affects the loader or the GPU"
            " runtime; remove it (the launch variables are always set)",
            # The message has the name, because a list of variables may be long.
            message_expression="'name: Drumline sets %s, or it affects the loader or the GPU"
            " runtime; remove it (the launch variables are always set)'.format([self.name])",
            field_path=".name",
        ),
        Rule(
            rule="!(has(self.value) && has(self.valueFrom))",
            message="value and valueFrom exclude each other; remove one",
        ),
    )


class ObjectRef(ApiModel):
    """A whole Secret or ConfigMap in the job's namespace."""

    name: Subdomain
    """Name of the Secret or ConfigMap."""
    optional: bool = False
    """If true, the pod also starts without the object. Default: false."""


class EnvFromSource(ApiModel):
    """All keys of a Secret or ConfigMap as variables. Set exactly one source.

    The keys are unknown until the container starts, and a key NVIDIA_VISIBLE_DEVICES would give the
    pod all GPUs of its node. A prefix that begins no reserved name is therefore required.
    """

    prefix: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    """Prefix of each variable's name: with prefix WANDB_, key API_KEY becomes WANDB_API_KEY.
    Prefixes such as N, which could form a name of the operator, the loader or the GPU runtime, are
    rejected. To load a single key under any name, use valueFrom in env."""
    secret_ref: ObjectRef | None = None
    """A Secret in the job's namespace."""
    config_map_ref: ObjectRef | None = None
    """A ConfigMap in the job's namespace."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="has(self.secretRef) != has(self.configMapRef)",
            message="envFrom needs exactly one of secretRef and configMapRef",
        ),
        Rule(
            # Both directions: a reserved name that starts with the prefix, and a prefix of ours.
            rule=f"!{['DRUMLINE_', *RESERVED_ENV]!r}.exists(name, name.startsWith(self.prefix))"
            " && !self.prefix.startsWith('DRUMLINE_')",
            message="prefix: a key could set a variable of Drumline, the loader or the GPU"
            " runtime; choose a longer prefix, such as WANDB_, or list the keys in env",
            field_path=".prefix",
        ),
        Rule(
            rule=f"!has(self.secretRef) || !self.secretRef.name.endsWith('{TOKEN_SECRET_SUFFIX}')",
            message=f"secretRef: Secrets named ...{TOKEN_SECRET_SUFFIX} hold the tokens of jobs;"
            " name another Secret",
            field_path=".secretRef",
        ),
    )
