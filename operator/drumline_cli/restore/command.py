"""Run `drumline restore`: read saved objects, print manifests, report each object on stderr."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from drumline_cli.commands import Output
from drumline_cli.errors import BadInput
from drumline_cli.job_yaml import job_yaml
from drumline_cli.manifests import read_manifests
from drumline_cli.restore.objects import ORDER, LeftOut, restored
from drumline_contract import plain


def run(chosen: argparse.Namespace, _environment: Mapping[str, str]) -> Output:
    """Print the manifests, what jobs need first; notes go to standard error.

    Raises:
        BadInput: a file cannot be read, or nothing of it is to be restored.
    """
    manifests: list[dict[str, Any]] = []
    for document in read_manifests(chosen.file):
        name = "/".join(filter(None, document.namespaced_name))
        match restored(document.raw):
            case LeftOut(reason=reason):
                sys.stderr.write(plain(f"left out: {document.kind} {name}: {reason}") + "\n")
            case result:
                manifests.append(result.manifest)
                if result.note:
                    sys.stderr.write(plain(f"{document.kind} {name}: {result.note}") + "\n")
    if not manifests:
        raise BadInput("nothing to restore: the input has no pool, queue or unfinished job")
    manifests.sort(key=lambda manifest: ORDER.index(manifest["kind"]))
    return Output(text=job_yaml(manifests))
