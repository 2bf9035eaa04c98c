"""Names of the cluster for the shell's completion: `drumline __complete KIND WORD ...`.

The words are those of the command line so far. They name the cluster and the namespace. A question
that is not answered within two seconds offers nothing, and no error is shown.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

COMPLETE: Final = "__complete"
JOBS: Final = "jobs"
QUEUES: Final = "queues"
POOLS: Final = "pools"
NAMESPACES: Final = "namespaces"
_SECONDS: Final = 2.0
_VALUES: Final = {
    "-n": "namespace",
    "--namespace": "namespace",
    "--context": "context",
    "--kubeconfig": "kubeconfig",
    "--as": "act_as",
}


def complete(words: Sequence[str]) -> int:
    """Print the names of a kind, one per line. Nothing is printed if they cannot be read."""
    try:
        names = _names(words[0], options_of(words[1:]))
    except Exception:  # noqa: BLE001 - a completion has no place for errors
        return 0
    sys.stdout.write("".join(f"{name}\n" for name in names))
    return 0


def options_of(words: Sequence[str]) -> dict[str, str]:
    """Return the options about the cluster among the words of an unfinished command line."""
    options: dict[str, str] = {}
    for at, word in enumerate(words):
        spelling, equals, value = word.partition("=")
        if spelling in _VALUES:
            options[_VALUES[spelling]] = value if equals else "".join(words[at + 1 : at + 2])
        elif word.startswith("-n") and not word.startswith("--") and len(word) > len("-n"):
            options["namespace"] = word[2:]
    return options


def _names(kind: str, options: dict[str, str]) -> list[str]:
    # A completion that asks no cluster starts without these imports.
    import asyncio  # noqa: PLC0415 - see above
    from dataclasses import replace  # noqa: PLC0415 - see above

    from drumline.kube import impersonation, reads  # noqa: PLC0415 - see above
    from drumline.kube import kinds as served  # noqa: PLC0415 - see above
    from drumline_cli.cluster_access import (  # noqa: PLC0415 - see above
        cluster_client,
        find_credentials,
    )

    kinds = {
        JOBS: served.TRAINING_JOBS,
        QUEUES: served.TRAINING_QUEUES,
        POOLS: served.GPU_POOLS,
        NAMESPACES: served.NAMESPACES,
    }
    file = options.get("kubeconfig")
    credentials = find_credentials(
        os.environ,
        kubeconfig=Path(file) if file else None,
        context=options.get("context") or None,
    )
    if user := options.get("act_as"):
        credentials = replace(credentials, impersonation=impersonation.headers(user=user))
    namespace = options.get("namespace") or credentials.namespace

    async def read() -> list[str]:
        async with cluster_client(credentials) as client, asyncio.timeout(_SECONDS):
            items = await reads.list_all(
                client, kinds[kind], namespace=namespace if kind == JOBS else None
            )
        return sorted(str(reads.document(item)["metadata"]["name"]) for item in items)

    return asyncio.run(read())
