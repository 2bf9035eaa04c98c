"""How the files of a release came to be: an in-toto statement with SLSA's provenance v1.

It is honest about its builder: a checkout on somebody's machine, which is level 1.
https://slsa.dev/spec/v1.0/provenance
"""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from tools.release.images import Image
from tools.release.source import ROOT, Source

Json = dict[str, Any]

BUILD_TYPE = "https://drumline.dev/release/v1"
LOCK = ROOT / "requirements.lock"


def statement(
    files: Mapping[str, str],
    images: Sequence[Image],
    *,
    source: Source,
    parameters: Mapping[str, Any],
) -> Json:
    """The statement about files (name -> SHA-256) and images."""
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            *({"name": name, "digest": {"sha256": digest}} for name, digest in files.items()),
            *(_image_subject(image) for image in images),
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"version": source.version, **parameters},
                "internalParameters": {
                    "SOURCE_DATE_EPOCH": source.epoch,
                    "modifiedFiles": source.modified,
                },
                "resolvedDependencies": _dependencies(images, source=source),
            },
            "runDetails": {
                "builder": {
                    "id": f"{BUILD_TYPE}/local",
                    "version": {"python": platform.python_version(), "system": sys.platform},
                },
                "metadata": {"invocationId": f"{source.commit}/{source.epoch}"},
            },
        },
    }


def _image_subject(image: Image) -> Json:
    digest = image.digest.removeprefix("sha256:")
    return {"name": f"drumline/{image.name}", "digest": {"sha256": digest}}


def _dependencies(images: Iterable[Image], *, source: Source) -> list[Json]:
    debian = {
        f"{package.name}_{package.version}_{package.architecture}.deb": package.sha256
        for image in images
        for variant in image.variants
        for package in variant.packages
    }
    return [
        {"name": "source", "digest": {"gitCommit": source.commit}},
        {"name": LOCK.name, "digest": {"sha256": sha256(LOCK)}},
        *({"name": name, "digest": {"sha256": debian[name]}} for name in sorted(debian)),
    ]


def sha256(path: Path) -> str:
    """The digest of a file, however large."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sums(folder: Path, *, but: AbstractSet[str] = frozenset()) -> dict[str, str]:
    """The digest of each file of a folder, by its path in it."""
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: sha256(files[name]) for name in sorted(files.keys() - but)}
