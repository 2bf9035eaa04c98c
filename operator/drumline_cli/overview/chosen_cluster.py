"""The cluster that the arguments name: of an API server, or of files."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from drumline.overview.objects import ClusterObjects
from drumline_cli.cluster_access import chosen_credentials
from drumline_cli.errors import BadInput
from drumline_cli.overview.read import (
    MOST_FILE_BYTES,
    WantedKinds,
    from_cluster,
    from_documents,
)


def cluster_of(
    chosen: argparse.Namespace, environment: Mapping[str, str], wanted: WantedKinds
) -> tuple[ClusterObjects, str]:
    """Return the objects, and the namespace that is meant.

    Args:
        chosen: has file, context, kubeconfig and, mostly, namespace.
        environment: environment variables of the process.
        wanted: what is read of a cluster; of files it is everything.

    Raises:
        CommandError: a file cannot be used, or the cluster refuses.
    """
    named: str | None = getattr(chosen, "namespace", None)
    if chosen.file:
        if chosen.context or chosen.kubeconfig:
            raise BadInput("--file cannot be combined with --context or --kubeconfig; remove them")
        as_of = max(map(_written_at, chosen.file))
        texts = list(map(_bytes, chosen.file))
        return from_documents(texts, as_of=as_of, names=chosen.file), named or "default"
    credentials = chosen_credentials(chosen, environment)
    own = named or credentials.namespace
    return asyncio.run(from_cluster(credentials, wanted, own=own)), own


def _bytes(name: str) -> bytes:
    try:
        if name == "-":
            return sys.stdin.buffer.read(MOST_FILE_BYTES + 1)
        with Path(name).open("rb") as file:  # a pipe, too: <(kubectl get ...)
            return file.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        raise BadInput(f"{name}: {error.strerror}") from None


def _written_at(name: str) -> float:
    try:
        return time.time() if name == "-" else Path(name).stat().st_mtime
    except OSError as error:
        raise BadInput(f"{name}: {error.strerror}") from None
