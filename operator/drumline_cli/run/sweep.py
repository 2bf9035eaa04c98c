"""`drumline run --sweep`: one job for each combination of parameters.

`--sweep lr=1e-4,3e-4 --sweep seed=0,1 -- python train.py --lr {lr} --seed {seed}`:

    train-kqwz-0  lr=1e-4 seed=0      train-kqwz-2  lr=3e-4 seed=0
    train-kqwz-1  lr=1e-4 seed=1      train-kqwz-3  lr=3e-4 seed=1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Final

from drumline_cli.errors import BadInput
from drumline_cli.run.manifests import RunRequest

MAX_JOBS: Final = 256


def sweep_requests(
    request: RunRequest, parameters: Sequence[str], *, max_parallel: int | None
) -> list[RunRequest]:
    """Return the requests of a sweep. The last parameter varies fastest.

    Without parameters, the result is the request itself.

    Args:
        request: request with `{name}` for a parameter in its command and variables.
        parameters: `name=value,value`.
        max_parallel: number of jobs that run at the same time. None: all.

    Raises:
        BadInput: a parameter is not valid, repeated or unused, or there are too many
            combinations.
    """
    if not parameters:
        if max_parallel is not None:
            raise BadInput("--max-parallel needs --sweep, because there is only one job")
        return [request]
    values = _values(parameters)
    texts = [*request.command, *(value for _, value in request.env)]
    for name in values:
        if not any(f"{{{name}}}" in text for text in texts):
            raise BadInput(f"--sweep {name}: write {{{name}}} in the command to use its value")
    count = prod(map(len, values.values()))
    if count > MAX_JOBS:
        raise BadInput(f"--sweep: {count} combinations exceed the maximum of {MAX_JOBS}; use fewer")
    limit = count if max_parallel is None else max_parallel
    sweep = {"name": request.name, "maxParallel": limit}
    return [
        _with_values(
            replace(
                request,
                name=f"{request.name}-{number}",
                options={**request.options, "sweep": sweep},
            ),
            dict(zip(values, chosen, strict=True)),
        )
        for number, chosen in enumerate(product(*values.values()))
    ]


def _values(parameters: Sequence[str]) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for text in parameters:
        name, equals, listed = text.partition("=")
        choices = listed.split(",")
        if not equals or not name.isidentifier() or "" in choices:
            raise BadInput(f"invalid --sweep {text}: want NAME=VALUE,VALUE, such as lr=1e-4,3e-4")
        if name in values:
            raise BadInput(f"--sweep {name} is given twice; list all its values in one")
        if len(set(choices)) < len(choices):
            raise BadInput(f"--sweep {text}: a value is repeated; its jobs would be equal")
        values[name] = choices
    return values


def _with_values(request: RunRequest, values: dict[str, str]) -> RunRequest:
    def filled(text: str) -> str:
        for name, value in values.items():
            text = text.replace(f"{{{name}}}", value)
        return text

    return replace(
        request,
        command=tuple(map(filled, request.command)),
        env=tuple((name, filled(value)) for name, value in request.env),
        parameters=" ".join(f"{name}={value}" for name, value in values.items()),
    )
