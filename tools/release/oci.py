"""OCI image layouts: blobs by digest, manifests, one index.

The same folder is what `oras` and `skopeo` copy as `oci:FOLDER`; packed, it is the archive that
`ctr images import`, `podman load` and `skopeo copy oci-archive:FILE` take.
https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

Json = dict[str, Any]

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
REFERENCE = "org.opencontainers.image.ref.name"
INDEX_FILE = "index.json"
LAYER_LEVEL = 1
"""Of gzip. CUDA's libraries hardly get smaller at higher ones, in five times the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A layer that is stored: its descriptor, and the digest of its tar file."""

    descriptor: Json
    diff_id: str


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout that is being written to a new folder; `finish` makes it whole."""

    folder: Path
    _manifests: list[Json] = field(default_factory=list[Json])

    def __post_init__(self) -> None:
        self._blobs.mkdir(parents=True)

    @property
    def _blobs(self) -> Path:
        return self.folder / "blobs" / "sha256"

    def add(self, content: bytes, *, media_type: str) -> Json:
        """Store a blob; returns its descriptor."""
        digest = hashlib.sha256(content).hexdigest()
        (self._blobs / digest).write_bytes(content)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    def add_json(self, content: Json, *, media_type: str) -> Json:
        """Store a document; returns its descriptor."""
        return self.add(encoded(content), media_type=media_type)

    def add_layer(self, write: Callable[[tarfile.TarFile], None]) -> Layer:
        """Store the layer that `write` fills, compressed while it is written."""
        with tempfile.NamedTemporaryFile(dir=self._blobs, delete=False) as file:
            stored = _Digesting(file)
            with gzip.GzipFile("", "wb", LAYER_LEVEL, stored, mtime=0) as packed:
                plain = _Digesting(packed)
                with tarfile.open(fileobj=plain, mode="w|", format=tarfile.PAX_FORMAT) as tar:
                    write(tar)
            size = file.tell()
        path = Path(file.name)
        path.chmod(0o644)
        path.rename(self._blobs / stored.digest.hexdigest())
        digest = f"sha256:{stored.digest.hexdigest()}"
        return Layer(
            descriptor={"mediaType": LAYER, "digest": digest, "size": size},
            diff_id=f"sha256:{plain.digest.hexdigest()}",
        )

    def list(self, descriptor: Json, *, reference: str) -> None:
        """Name a manifest or an index of manifests in the layout's index."""
        self._manifests.append({**descriptor, "annotations": {REFERENCE: reference}})

    def finish(self) -> None:
        """Write the index; nothing may be added after."""
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": self._manifests}
        (self.folder / INDEX_FILE).write_bytes(encoded(index))
        (self.folder / "oci-layout").write_bytes(encoded({"imageLayoutVersion": "1.0.0"}))


class _Sink(Protocol):
    def write(self, data: bytes, /) -> int: ...


class _Digesting(io.RawIOBase):
    """A file that is written through, and the digest of what was written."""

    def __init__(self, target: _Sink) -> None:
        self._target = target
        self.digest = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return self._target.write(data)


def manifest(config: Json, layers: Sequence[Json], *, annotations: Mapping[str, str]) -> Json:
    """The manifest of an image or an artefact, from the descriptors of its parts."""
    return {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config,
        "layers": list(layers),
        "annotations": dict(annotations),
    }


def encoded(content: Json) -> bytes:
    """The one way in which documents are written here, so that their digests are the same."""
    return json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False).encode()


def pack(folder: Path, archive: Path) -> None:
    """Write a layout as one tar file."""
    with tarfile.open(archive, "w") as tar:
        for path in sorted(each for each in folder.rglob("*") if each.is_file()):
            tar.add(path, arcname=str(path.relative_to(folder)), filter=plain_entry)


def plain_entry(entry: tarfile.TarInfo, *, epoch: int = 0) -> tarfile.TarInfo:
    """An entry without what differs from machine to machine: owner, time, group's write bit."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = epoch
    entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
    entry.pax_headers = {}
    return entry


def read_archived(tar: tarfile.TarFile, name: str) -> bytes:
    """A file of a packed layout.

    Raises:
        KeyError: there is none of that name.
    """
    file = tar.extractfile(name)
    if file is None:
        raise KeyError(name)
    return file.read()
