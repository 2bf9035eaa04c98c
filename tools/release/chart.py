"""The chart as Helm packs it, and as the artefact that Helm pulls from a registry.

`helm package` stamps the time of packing; this writes the same archive with the commit's.
https://helm.sh/docs/topics/registries/
"""

from __future__ import annotations

import fnmatch
import gzip
import io
import json
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tools.release.oci import Layout, manifest, plain_entry
from tools.release.source import ROOT, Source

CHART = ROOT / "helm" / "drumline"
CONFIG = "application/vnd.cncf.helm.config.v1+json"
CONTENT = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"


_IMAGE_KEYS = {"operator": "image", "trainer": "trainerImage"}
"""Name of an image -> its key in the chart's values."""


def packed_chart(
    source: Source, *, chart: Path = CHART, digests: Mapping[str, str] | None = None
) -> bytes:
    """Pack the chart: its files below its name, Chart.yaml first, as Helm has it.

    Args:
        source: the commit, whose time all files get.
        chart: the chart's folder.
        digests: of the images by name, which become the chart's default values.
    """
    name = metadata(chart)["name"]
    output = io.BytesIO()
    with (
        gzip.GzipFile("", "wb", 9, output, mtime=source.epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for file in _files(chart):
            arcname = f"{name}/{file.relative_to(chart)}"
            content = file.read_bytes()
            if file == chart / "values.yaml":
                content = _pinned(content.decode(), digests or {}).encode()
            entry = plain_entry(tar.gettarinfo(file, arcname), epoch=source.epoch)
            entry.mode, entry.size = 0o644, len(content)
            tar.addfile(entry, io.BytesIO(content))
    return output.getvalue()


def _pinned(values: str, digests: Mapping[str, str]) -> str:
    """Write the digests into the text of values.yaml, whose comments stay."""
    for image, digest in digests.items():
        empty = re.compile(rf'^({_IMAGE_KEYS[image]}:\n(?: .*\n)*?  digest: )""', re.MULTILINE)
        values, count = empty.subn(rf'\g<1>"{digest}"', values)
        if count != 1:
            raise ValueError(f"values.yaml has no empty {_IMAGE_KEYS[image]}.digest to fill in")
    return values


def write_layout(folder: Path, archive: bytes, *, source: Source) -> str:
    """Write the archive as an OCI image layout; returns the digest of its manifest."""
    about = metadata(CHART)
    layout = Layout(folder)
    config = layout.add(json.dumps(about, sort_keys=True).encode(), media_type=CONFIG)
    content = layout.add(archive, media_type=CONTENT)
    annotations = {
        "org.opencontainers.image.created": source.time,
        "org.opencontainers.image.description": about["description"],
        "org.opencontainers.image.revision": source.commit,
        "org.opencontainers.image.title": about["name"],
        "org.opencontainers.image.version": about["version"],
    }
    described = manifest(config, [content], annotations=annotations)
    descriptor = layout.add_json(described, media_type=described["mediaType"])
    layout.list(descriptor, reference=about["version"])
    layout.finish()
    return descriptor["digest"]


def metadata(chart: Path) -> dict[str, Any]:
    """Chart.yaml."""
    return yaml.safe_load((chart / "Chart.yaml").read_text())


def _files(chart: Path) -> list[Path]:
    ignore = chart / ".helmignore"
    lines = ignore.read_text().splitlines() if ignore.exists() else []
    patterns = [line.rstrip("/") for line in lines if line and not line.startswith("#")]

    def ignored(file: Path) -> bool:
        parts = file.relative_to(chart).parts
        return any(fnmatch.fnmatch(part, pattern) for part in parts for pattern in patterns)

    files = [file for file in chart.rglob("*") if file.is_file() and not ignored(file)]
    return sorted(files, key=lambda file: (file != chart / "Chart.yaml", str(file)))
