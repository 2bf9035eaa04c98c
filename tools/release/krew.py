"""Build the kubectl plugin for krew: an archive with the wheel and a launcher, and its manifest.

Krew unpacks the archive and links the launcher as `kubectl-drumline`. The launcher runs the wheel
beside it with uv, which caches an environment for it. So the plugin needs only uv.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from pathlib import Path

import yaml

from tools.release.source import Source

LAUNCHER = "kubectl-drumline"
MANIFEST = "krew-drumline.yaml"
_SCRIPT = """\
#!/bin/sh
# krew links to this file. The wheel is beside the target of the link.
here="$(dirname "$(readlink -f "$0")")"
if ! command -v uv >/dev/null 2>&1; then
  echo "kubectl drumline: uv is missing. Install uv, or run: pipx install '$here/{wheel}[cli]'" >&2
  exit 127
fi
exec uv tool run --quiet --from "$here/{wheel}[cli]" drumline "$@"
"""


def write_plugin(folder: Path, wheel: Path, *, source: Source, address: str | None) -> None:
    """Write the archive and the manifest of the plugin.

    Args:
        folder: the release; both files are written there.
        wheel: of the command line.
        source: the commit. All entries have its time, so equal files give equal bytes.
        address: URL of the folder that will serve the release. None: a placeholder.
    """
    archive = folder / f"{LAUNCHER}-{source.version}.tar.gz"
    archive.write_bytes(packed(wheel, epoch=source.epoch))
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    described = manifest(
        version=source.version,
        uri=f"{address.rstrip('/') if address else 'ADDRESS-OF-THE-RELEASE'}/{archive.name}",
        sha256=digest,
    )
    (folder / MANIFEST).write_text(yaml.safe_dump(described, sort_keys=False))


def packed(wheel: Path, *, epoch: int) -> bytes:
    """Return a tar.gz of the launcher and the wheel."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        script = _SCRIPT.format(wheel=wheel.name).encode()
        for name, content, mode in (
            (LAUNCHER, script, 0o755),
            (wheel.name, wheel.read_bytes(), 0o644),
        ):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(content), mode, epoch
            tar.addfile(entry, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), mtime=epoch)


def manifest(*, version: str, uri: str, sha256: str) -> dict[str, object]:
    """Return the Plugin object that krew reads."""
    systems = {"key": "os", "operator": "In", "values": ["linux", "darwin"]}
    platform = {
        "selector": {"matchExpressions": [systems]},
        "uri": uri,
        "sha256": sha256,
        "bin": LAUNCHER,
    }
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "drumline"},
        "spec": {
            "version": f"v{version}",
            "shortDescription": "Run and explain distributed training jobs",
            "description": "Submits TrainingJobs, follows their logs, and explains why they wait,"
            " where they run and what they cost.",
            "caveats": "Needs uv on the PATH.",
            "platforms": [platform],
        },
    }
