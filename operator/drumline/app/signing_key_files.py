"""The signing keys of this process, mounted from a Secret that the first operator may create.

The Secret has a key `key` and, while keys are changed, a key `previous`. A chart would render
another Secret each time (GitOps cannot look it up in the cluster), so the operator creates it if it
is missing. It may create Secrets and read none. A second replica waits until the kubelet mounts the
file.
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
# 128 bits: shorter keys could be guessed offline from a token.
MIN_BYTES: Final = 16
NEW_BYTES: Final = 32
WAIT_SECONDS: Final = 180.0
"""The kubelet shows a new Secret in a volume within about two minutes."""
LOOK_SECONDS: Final = 1.0
# Creation happens before an election, so the fence would reject it.
_UNFENCED: Final = Sending(fenced=False)


class BadSigningKeyError(OSError):
    """A signing key is missing or too short. The message has the place and the remedy."""


def read_keys(file: Path) -> SigningKeys:
    """Return the keys in this file and in `previous` beside it.

    Raises:
        FileNotFoundError: the key is missing.
        BadSigningKeyError: a key is too short.
    """
    # The old key stays valid until all gangs with it have ended.
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
    """Return the mounted keys. Without any, create a key and store it in this Secret first.

    Args:
        client: sends the creation.
        file: file of the Secret's mounted `key`.
        namespace: namespace of the operator.
        secret: name of the Secret to create. Empty if only the mounted one is used.
        new_key: creates a key.

    Raises:
        BadSigningKeyError: a usable key is missing.
        KubeError: the Secret could not be created.
    """
    # Phase 1: a mounted key wins, and without a name nothing may be created.
    if _is_mounted(file) or not secret:
        return _mounted(file)
    key = new_key()
    body = {
        "metadata": {"name": secret, "namespace": namespace},
        "type": "Opaque",
        "data": {"key": base64.b64encode(key.encode()).decode()},
    }
    # Phase 2: create it. A 409 means that another replica was faster.
    try:
        await writes.create(client, SECRETS, namespace=namespace, body=body, sending=_UNFENCED)
    except AlreadyExists:
        return await _wait_for(file, secret=secret)
    log.info("signing_key_created", secret=f"{namespace}/{secret}")
    # The new key is used at once. The kubelet would take minutes to mount it.
    return SigningKeys(current=key.encode())


async def _wait_for(file: Path, *, secret: str) -> SigningKeys:
    """Wait until the kubelet has mounted the Secret of another operator. Return its keys."""
    log.info("signing_key_awaited", file=str(file))
    try:
        # Phase 3: wait for the other replica's key. Two keys would split the gangs.
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
