"""The signing keys of this process: mounted from a Secret, which the first operator may make.

The Secret has a key `key` and, while keys are changed, a key `previous`. A chart that rendered it
would render another one each time (GitOps has no cluster to look it up in), so the operator creates
it where there is none: it may create Secrets and read none. Another replica that comes second waits
until the kubelet shows it the file.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

from drumline.kube import writes
from drumline.kube.client import KubeClient
from drumline.kube.errors import AlreadyExists
from drumline.kube.kinds import SECRETS
from drumline.kube.request import Sending
from drumline.lifecycle.model.signing_keys import SigningKeys
from drumline.telemetry import logs

log = logs.get("drumline.app.signing_key_files")

PREVIOUS: Final = "previous"
MIN_BYTES: Final = 16
NEW_BYTES: Final = 32
WAIT_SECONDS: Final = 180.0
"""The kubelet shows a new Secret in a volume within about two minutes."""
LOOK_SECONDS: Final = 1.0
_UNFENCED: Final = Sending(fenced=False)


class BadSigningKeyError(OSError):
    """There is no usable key; says where, and what to do."""


def read_keys(file: Path) -> SigningKeys:
    """The keys in this file and in `previous` beside it.

    Raises:
        FileNotFoundError: there is no key.
        BadSigningKeyError: a key is too short.
    """
    previous = file.with_name(PREVIOUS)
    return SigningKeys(current=_read(file), previous=_read(previous) if previous.exists() else None)


async def find_keys(
    client: KubeClient,
    *,
    file: Path,
    namespace: str,
    secret: str,
    new_key: Callable[[], str] = lambda: secrets.token_hex(NEW_BYTES),
) -> SigningKeys:
    """The mounted keys; where there are none yet, a new key, stored in this Secret first.

    Args:
        client: sends the creation.
        file: where the Secret's `key` is mounted.
        namespace: the operator's.
        secret: name of the Secret to create; empty where only the mounted one is used.
        new_key: makes a key.

    Raises:
        BadSigningKeyError: there is no usable key.
        KubeError: the Secret could not be created.
    """
    if _is_mounted(file) or not secret:
        return _mounted(file)
    key = new_key()
    body = {
        "metadata": {"name": secret, "namespace": namespace},
        "type": "Opaque",
        "data": {"key": base64.b64encode(key.encode()).decode()},
    }
    try:
        await writes.create(client, SECRETS, namespace=namespace, body=body, sending=_UNFENCED)
    except AlreadyExists:
        return await _wait_for(file, secret=secret)
    log.info("signing_key_created", secret=f"{namespace}/{secret}")
    return SigningKeys(current=key.encode())


async def _wait_for(file: Path, *, secret: str) -> SigningKeys:
    """The keys once the kubelet has mounted the Secret that another operator made."""
    log.info("signing_key_awaited", file=str(file))
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            while not _is_mounted(file):  # noqa: ASYNC110 - the kubelet tells nobody
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        raise BadSigningKeyError(
            f"{file} does not exist although Secret {secret} exists: the Secret needs a data key"
            " `key`"
        ) from None
    return _mounted(file)


def _is_mounted(file: Path) -> bool:
    return file.exists()


def _mounted(file: Path) -> SigningKeys:
    try:
        return read_keys(file)
    except FileNotFoundError:
        raise BadSigningKeyError(
            f"{file}: the signing key does not exist; set signingKey.existingSecret to a Secret"
            " with a data key `key`"
        ) from None


def _read(file: Path) -> bytes:
    key = file.read_bytes().strip()
    if len(key) < MIN_BYTES:
        raise BadSigningKeyError(f"{file}: a signing key must have at least {MIN_BYTES} bytes")
    return key
