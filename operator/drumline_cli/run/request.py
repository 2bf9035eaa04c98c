"""The arguments of `drumline run` as a request."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Final, get_args

from drumline.kube.quantity import is_quantity, units
from drumline_api.after import AfterSpec
from drumline_api.resource_names import LEAST_MEMORY
from drumline_cli.errors import BadInput
from drumline_cli.run.code_from import CodeFrom, code_from
from drumline_cli.run.command_words import check_words
from drumline_cli.run.manifests import RunRequest, job_stem, launch_of
from drumline_cli.run.requirements import read_requirements
from drumline_cli.run.variables import values_of, variables_of
from drumline_contract import (
    MAX_PATTERNS,
    MAX_PRELOADS,
    PROGRESS_GROUPS,
    ContractError,
    LinePattern,
    PythonProgram,
    is_module_name,
)

_RESOURCES: Final = ("cpu", "memory", "ephemeral-storage")
_CONDITIONS: Final = get_args(AfterSpec.model_fields["condition"].annotation)


def run_request(
    chosen: argparse.Namespace,
    environment: Mapping[str, str],
    *,
    queue: str,
    namespace: str | None,
    letters: str,
) -> RunRequest:
    """Return the request.

    Args:
        chosen: the arguments. `command_line` is the command after `--`.
        environment: environment variables of this process.
        queue: queue whose quota it uses.
        namespace: namespace of the job. None: not specified.
        letters: random letters for the job's name.

    Raises:
        BadInput: the command or the image is missing, or an argument is not valid.
    """
    command: list[str] = chosen.command_line
    if not command:
        raise BadInput(
            "no command is given; write it after two dashes: drumline run -- python train.py"
        )
    _check_counts(chosen)
    check_words(command, nodes=chosen.nodes)
    image = image_of(chosen.image, environment)
    env, warnings = values_of(chosen.env, environment)
    options = {
        "gpuPool": chosen.pool,
        "priorityClassName": chosen.priority,
        "user": chosen.user,
        "after": [_after(text) for text in chosen.after],
        # A zero hold is the default, so the field is left out.
        "recovery": {"holdSeconds": chosen.hold} if chosen.hold else {},
    }
    return RunRequest(
        name=chosen.name or f"{job_stem(command)}-{letters}",
        namespace=namespace,
        queue=queue,
        image=image,
        nodes=chosen.nodes,
        gpus=chosen.gpus,
        command=tuple(command),
        launch=chosen.launch or launch_of(command, ranks=chosen.nodes * max(chosen.gpus, 1)),
        env=env,
        variables=variables_of(chosen),
        warnings=warnings,
        claims=pairs(chosen.claim, option="--claim", form="NAME=/FOLDER"),
        resources=resources_of(chosen.resources),
        preload=_preload(chosen.preload, command),
        progress=_progress(chosen.progress),
        code_from=_code_from(chosen, environment),
        requirements=read_requirements(chosen.requirements) if chosen.requirements else "",
        options={name: value for name, value in options.items() if value},
    )


def _check_counts(chosen: argparse.Namespace) -> None:
    # Zero nodes or GPUs is a common mistake for copying data, so name the right command.
    for option, count in (("--nodes", chosen.nodes), ("--gpus", chosen.gpus)):
        if count < 1:
            raise BadInput(
                f"{option} {count}: must be at least 1; drumline cp copies files without a GPU"
            )


def image_of(given: str | None, environment: Mapping[str, str]) -> str:
    """Return the image that was named.

    Raises:
        BadInput: none was.
    """
    image = given or environment.get("DRUMLINE_IMAGE")
    if not image:
        raise BadInput(
            "no image is given; set one that has Python and your libraries with --image or"
            " DRUMLINE_IMAGE, for example pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime"
        )
    return image


def _code_from(chosen: argparse.Namespace, environment: Mapping[str, str]) -> CodeFrom | None:
    if not chosen.code_from:
        # An option without its partner has no effect, so it is reported.
        if chosen.git_image:
            raise BadInput("--git-image needs --code-from git")
        if chosen.code_secret:
            raise BadInput("--code-secret needs --code-from s3://BUCKET")
        return None
    if chosen.no_code:
        raise BadInput(
            "--no-code and --code-from exclude each other: the image contains the"
            " code, or pods fetch it"
        )
    return code_from(
        chosen.code_from,
        folder=chosen.folder,
        image=chosen.git_image or "",
        environment=environment,
        secret=chosen.code_secret or "",
    )


def _preload(text: str, command: Sequence[str]) -> tuple[str, ...]:
    if not text:
        return ()
    modules = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if len(modules) > MAX_PRELOADS or not all(map(is_module_name, modules)):
        raise BadInput(
            f"invalid --preload {text}: want at most {MAX_PRELOADS} names of Python modules:"
            " torch,transformers"
        )
    try:
        # Preloading works only for Python programs, since it imports modules.
        PythonProgram.parse(command)
    except ContractError as error:
        raise BadInput(f"--{error}") from None
    return modules


def _progress(patterns: Sequence[str]) -> tuple[str, ...]:
    """Return the patterns, which the agent must be able to read."""
    groups: set[str] = set()
    for pattern in patterns:
        try:
            # The agent parses the same patterns, so a mistake is found before the job starts.
            groups.update(LinePattern.parse(pattern).groups)
        except ContractError as error:
            raise BadInput(f"invalid --progress {pattern}: {error}") from None
    if len(patterns) > MAX_PATTERNS:
        raise BadInput(f"--progress: want at most {MAX_PATTERNS} patterns, got {len(patterns)}")
    unknown = sorted(groups.difference(PROGRESS_GROUPS, {""}))
    if unknown:
        known = ", ".join(PROGRESS_GROUPS)
        raise BadInput(f"invalid --progress: unknown group {unknown[0]}: want {known}")
    # Progress without a step number cannot be shown.
    if patterns and "step" not in groups:
        raise BadInput(
            "invalid --progress: no pattern has the group step: want for example"
            r" 'it (?P<step>\d+): (?P<loss>\S+)'"
        )
    return tuple(patterns)


def _after(text: str) -> dict[str, str]:
    """`JOB` or `JOB:Finished`."""
    job, colon, condition = text.partition(":")
    if not job or (colon and condition not in _CONDITIONS):
        raise BadInput(
            f"invalid --after {text}: want JOB, or JOB:Finished if the job may also fail"
        )
    return {"job": job, "condition": condition or _CONDITIONS[0]}


def resources_of(text: str) -> tuple[tuple[str, str], ...]:
    """Return the value of --resources, a pair for each resource.

    Raises:
        BadInput: a part is not `NAME=QUANTITY`, a name is repeated, or memory lacks its unit.
    """
    given = [each for each in text.split(",") if each]
    resources = pairs(given, option="--resources", form="cpu=8,memory=64Gi")
    if len(dict(resources)) < len(resources):
        raise BadInput(f"--resources {text}: one resource is given twice; leave one out")
    for name, amount in resources:
        _check_resource(name, amount)
        # `64` is 64 bytes and `64m` is less: no container starts with them.
        if name == "memory" and is_quantity(amount) and units(amount) < units(LEAST_MEMORY):
            number = amount.rstrip("mkKiM")
            raise BadInput(
                f"--resources memory={amount} is {units(amount)} bytes; write"
                f" memory={number}Gi or memory={number}Mi"
            )
    return resources


def _check_resource(name: str, amount: str) -> None:
    """Raise BadInput for a name or an amount that no Pod can have."""
    if "/" not in name and not name.startswith("hugepages-") and name not in _RESOURCES:
        near = get_close_matches(name, _RESOURCES, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else f": want {', '.join(_RESOURCES)}"
        raise BadInput(f"--resources {name}={amount}: {name!r} is not a resource of Pods{hint}")
    if not is_quantity(amount):
        example = "8 or 500m" if name == "cpu" else "64Gi or 512Mi"
        raise BadInput(f"--resources {name}={amount}: {amount!r} is not an amount; write {example}")


def pairs(texts: Sequence[str], *, option: str, form: str) -> tuple[tuple[str, str], ...]:
    """Return the text before and after the equals sign of each.

    Args:
        texts: values of the option.
        option: name of the option, for errors.
        form: required form, for errors.

    Raises:
        BadInput: one has none.
    """
    parted: list[tuple[str, str]] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise BadInput(f"{option} {text}: write {form}")
        parted.append((name, value))
    return tuple(parted)
