"""Variables of a job: values, keys of Secrets, and whole Secrets or ConfigMaps.

A value stands in the job's spec, which many users can read. A Secret does not.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from drumline_cli.errors import BadInput

Json = dict[str, Any]

_OBJECT: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
# Names that usually hold secrets. A match causes a warning, never an error.
_SECRET_NAME: Final = re.compile(
    r"(^|_)(tokens?|secrets?|password|passwd|passphrase|credentials?|api_?key|key|pat)$|secret",
    re.IGNORECASE,
)
# Known prefixes of tokens, so that a token in another variable is found too.
_SECRET_VALUE: Final = re.compile(
    r"(hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abp]-|AKIA|ASIA|AIza|-----BEGIN )\S{8,}"
)
_KINDS: Final = {"secret": "secretRef", "configmap": "configMapRef"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobVariables:
    """Variables that have no value in the job's spec.

    Attributes:
        env: entries of `template.env`.
        env_from: entries of `template.envFrom`.
        pull_secrets: names of Secrets for the image's registry.
    """

    env: tuple[Json, ...] = ()
    env_from: tuple[Json, ...] = ()
    pull_secrets: tuple[str, ...] = ()


def values_of(
    texts: Sequence[str], environment: Mapping[str, str]
) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Return the names and values of `--env`, and the warnings about them.

    Args:
        texts: `NAME=VALUE`, or `NAME` for the value in this process's environment.
        environment: environment variables of this process.

    Raises:
        BadInput: a name is not one of a variable, or has no value here.
    """
    values: list[tuple[str, str]] = []
    warnings: list[str] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not _VARIABLE.fullmatch(name):
            raise BadInput(f"invalid --env {text}: want NAME=VALUE, or NAME for this shell's value")
        if not equals:
            # A missing variable would become an empty value, which is hard to notice.
            if name not in environment:
                raise BadInput(f"--env {name}: this shell has no variable {name}; export it")
            value = environment[name]
        values.append((name, value))
        # Warn about the name or the value. Users may still continue.
        if _SECRET_NAME.search(name) or _SECRET_VALUE.match(value):
            warnings.append(
                f"warning: {name} looks like a secret, and everyone who may read the job can read"
                f" it. Put it into a Secret: kubectl create secret generic tokens"
                f" --from-literal={name}=..., then --secret tokens={name}"
            )
    return tuple(values), tuple(warnings)


def variables_of(chosen: argparse.Namespace) -> JobVariables:
    """Return the variables from Secrets and ConfigMaps.

    Raises:
        BadInput: an option is not of its form.
    """
    env = [_key_of(text) for text in chosen.secret if "=" in text]
    names = [str(each["name"]) for each in env]
    # Checked before the cluster is read.
    for text in chosen.secret:
        _checked(text.partition("=")[0], option=f"--secret {text}")
    # Two Secrets with one variable would hide each other.
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise BadInput(f"--secret gives {twice} twice; remove one, or write KEY:VARIABLE")
    for name in chosen.pull_secret:
        _checked(name, option=f"--pull-secret {name}")
    return JobVariables(
        env=tuple(env),
        env_from=tuple(map(_all_of, chosen.env_from)),
        pull_secrets=tuple(dict.fromkeys(chosen.pull_secret)),
    )


def whole_secrets(chosen: argparse.Namespace) -> tuple[str, ...]:
    """Return the Secrets of which all keys become variables of the same names."""
    return tuple(text for text in chosen.secret if "=" not in text)


def from_keys(secret: str, keys: Sequence[str]) -> tuple[Json, ...]:
    """Return the variables for all keys of a Secret.

    Raises:
        BadInput: a key is not a variable's name, or there is none.
    """
    if not keys:
        raise BadInput(f"--secret {secret}: this Secret has no keys")
    # Sorted keys give a stable manifest.
    return tuple(_key_of(f"{secret}={key}") for key in sorted(keys))


def _key_of(text: str) -> Json:
    secret, _, rest = text.partition("=")
    key, colon, name = rest.partition(":")
    # A colon renames the variable. Without one, the key is the name.
    name = name if colon else key
    if not key or not _VARIABLE.fullmatch(name):
        raise BadInput(
            f"--secret {text}: {name!r} is not a variable's name; write"
            f" --secret {secret}={key or 'KEY'}:VARIABLE"
        )
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def _all_of(text: str) -> Json:
    source, _, prefix = text.partition("=")
    kind, slash, name = source.partition("/")
    if not slash or kind not in _KINDS or not prefix:
        shown = source if slash and kind in _KINDS else f"secret/{source.rpartition('/')[2]}"
        raise BadInput(
            f"invalid --env-from {text}: want secret/NAME=PREFIX or configmap/NAME=PREFIX, such as"
            f" {shown}=WANDB_"
        )
    _checked(name, option=f"--env-from {text}")
    return {"prefix": prefix, _KINDS[kind]: {"name": name}}


def _checked(name: str, *, option: str) -> None:
    if not _OBJECT.fullmatch(name):
        raise BadInput(
            f"{option}: {name!r} is not a valid object name. Name a Secret of the namespace, such"
            " as tokens, and a key in it: --secret tokens=HF_TOKEN"
        )
