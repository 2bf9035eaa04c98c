"""Makes the release of the commit that is checked out, in build/release."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.cluster.model import ClusterError
from tools.cluster.progress import Progress
from tools.release import chart, krew, provenance, sbom, vex
from tools.release.debian import ARCHITECTURES
from tools.release.images import Image, RecipeError, write_image
from tools.release.oci import encoded, pack
from tools.release.provenance import sums
from tools.release.signing import Key, SignatureError, image_payload, load_key
from tools.release.source import ROOT, Source, read_source
from tools.release.verify import PROVENANCE, SUMS
from tools.release.wheels import build_wheels

FOLDER = ROOT / "build" / "release"
KEY = ROOT / "build" / "release-key.pem"
PUBLIC_KEY = "drumline.pub"
CHART_LAYOUT = "chart"
USUAL = {"operator": ["amd64", "arm64"], "trainer": ["amd64"]}
"""Image -> its architectures where nothing else is asked for: the trainer's has 3 GB for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is made: the architectures of each image, and the key that signs it."""

    architectures: Mapping[str, Sequence[str]]
    key: Path
    address: str | None = None
    """URL of the folder that will serve the release, for krew's manifest."""


def main(argv: Sequence[str] | None = None) -> int:
    """Make a release; 1 with a sentence when it cannot be done."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    for image, usual in USUAL.items():
        parser.add_argument(
            f"--{image}",
            metavar="ARCHITECTURE",
            nargs="*",
            choices=[*ARCHITECTURES],
            default=usual,
            help=f"of the {image}'s image (default: {' '.join(usual)}); none: no such image",
        )
    parser.add_argument(
        "--key", type=Path, default=KEY, help=f"PEM file; default: {KEY}, made if absent"
    )
    parser.add_argument(
        "--address", metavar="URL", help="folder that will serve the release, for krew's manifest"
    )
    options = vars(parser.parse_args(argv))
    wanted = Wanted(
        architectures={image: options[image] for image in USUAL if options[image]},
        key=options["key"],
        address=options["address"],
    )
    try:
        make(FOLDER, wanted=wanted, source=read_source())
    except (ClusterError, RecipeError, SignatureError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def make(folder: Path, *, wanted: Wanted, source: Source) -> None:
    """Make all of it, in the place of what was there."""
    progress = Progress(out=_say)
    if source.modified:
        progress.say("files differ from the commit: the provenance says so")
    key = load_key(wanted.key, make=wanted.key == KEY)
    staged = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    with progress.step("wheels, and the plugin of kubectl"):
        wheels = build_wheels(staged, source=source)
        (wheel,) = [each for each in wheels if each.name.startswith("drumline-")]
        krew.write_plugin(staged, wheel, source=source, address=wanted.address)
    images = [
        _write_image(staged, name, architectures, source=source, progress=progress)
        for name, architectures in wanted.architectures.items()
    ]
    with progress.step("chart"):
        _write_chart(staged, images, source=source)
    if images:
        _write_json(staged / "drumline.openvex.json", vex.document(images, source=source))
    parameters = {"architectures": dict(wanted.architectures)}
    sign(staged, images, key=key, parameters=parameters, source=source)
    shutil.rmtree(folder, ignore_errors=True)
    staged.rename(folder)
    for file in sorted(folder.iterdir()):
        size = f"{file.stat().st_size / 1e6:9.2f} MB" if file.is_file() else " " * 12
        progress.say(f"{size}  {file.name}")
    progress.say(f"the release is in {folder}")


def _say(line: str) -> None:
    print(line, flush=True)


def _write_chart(folder: Path, images: Sequence[Image], *, source: Source) -> None:
    archive = chart.packed_chart(source, digests={image.name: image.digest for image in images})
    about = chart.metadata(chart.CHART)
    (folder / f"{about['name']}-{about['version']}.tgz").write_bytes(archive)
    chart.write_layout(folder / CHART_LAYOUT, archive, source=source)


def _write_image(
    folder: Path,
    name: str,
    architectures: Sequence[str],
    *,
    source: Source,
    progress: Progress,
) -> Image:
    archive = folder / f"{name}-{source.version}.tar"
    layout = folder / f"{name}.layout"
    with progress.step(f"image of the {name} for {', '.join(architectures)}"):
        image = write_image(layout, name, architectures=architectures, source=source)
        pack(layout, archive)
        shutil.rmtree(layout)
    for variant in image.variants:
        file = folder / f"{name}-{source.version}-{variant.architecture}.spdx.json"
        _write_json(file, sbom.document(image, variant, source=source))
    return image


def sign(
    folder: Path,
    images: Sequence[Image],
    *,
    key: Key,
    parameters: Mapping[str, Any],
    source: Source,
) -> None:
    """Provenance, sums of all files, and signatures of these, of each artefact and each image."""
    (folder / PUBLIC_KEY).write_bytes(key.public_pem)
    for image in images:
        payload = image_payload(f"drumline/{image.name}", image.digest)
        (folder / f"{image.name}-{source.version}.cosign.json").write_bytes(payload)
    made = provenance.statement(sums(folder), images, source=source, parameters=parameters)
    _write_json(folder / PROVENANCE, key.envelope(made))
    for pattern in ("*.tgz", "*.whl", "*.cosign.json"):
        for file in sorted(folder.glob(pattern)):
            file.with_name(f"{file.name}.sig").write_bytes(key.sign(file.read_bytes()))
    listing = "".join(f"{digest}  {name}\n" for name, digest in sums(folder).items()).encode()
    (folder / SUMS).write_bytes(listing)
    (folder / f"{SUMS}.sig").write_bytes(key.sign(listing))


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_bytes(encoded(content) + b"\n")


if __name__ == "__main__":
    sys.exit(main())
