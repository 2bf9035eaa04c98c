"""Whether a folder is a release, whole and unchanged, of the holder of a key.

    python -m tools.release.verify build/release --key drumline.pub

The key must come from elsewhere than the folder: whoever changes the one could change the other.
docs/releasing.md says how to do the same with sha256sum, openssl and cosign.
"""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from tools.release.oci import INDEX_FILE, read_archived
from tools.release.provenance import sums
from tools.release.signing import SignatureError, opened, verify

SUMS = "SHA256SUMS"
PROVENANCE = "provenance.intoto.json"


def check(folder: Path, *, public_pem: bytes) -> list[str]:
    """What was found to hold, a line each.

    Raises:
        SignatureError: something does not; the message names it.
    """
    listing = (folder / SUMS).read_bytes()
    _check(listing, folder / f"{SUMS}.sig", public_pem=public_pem)
    listed = {name: digest for digest, name in _lines(listing)}
    present = sums(folder, but={SUMS, f"{SUMS}.sig"})
    for name in sorted(listed.keys() | present.keys()):
        if listed.get(name) != present.get(name):
            raise SignatureError(f"{name} is not the file that {SUMS} names")
    for signature in sorted(folder.glob("*.sig")):
        _check(signature.with_suffix("").read_bytes(), signature, public_pem=public_pem)
    images = [_image(file, folder) for file in sorted(folder.glob("*.cosign.json"))]
    envelope = json.loads((folder / PROVENANCE).read_text())
    statement = opened(envelope, public_pem=public_pem)
    for subject in statement["subject"]:
        digest = subject["digest"]["sha256"]
        if digest not in {listed.get(subject["name"]), *images}:
            raise SignatureError(f"the provenance is about another {subject['name']}")
    return [
        f"{len(listed)} files are those of {SUMS}, which the key signed",
        f"{len(images)} images have the digests that the key signed",
        f"the provenance is about {len(statement['subject'])} of them",
    ]


def _check(content: bytes, signature: Path, *, public_pem: bytes) -> None:
    try:
        verify(content, signature.read_bytes(), public_pem=public_pem)
    except SignatureError as error:
        raise SignatureError(f"{signature.name}: {error}") from None


def _lines(listing: bytes) -> list[tuple[str, str]]:
    return [
        (digest, name)
        for line in listing.decode().splitlines()
        for digest, _, name in (line.partition("  "),)
    ]


def _image(payload: Path, folder: Path) -> str:
    """The digest that is signed of an image, once the archive is found to have it."""
    signed = json.loads(payload.read_text())["critical"]["image"]["docker-manifest-digest"]
    archive = folder / payload.name.replace(".cosign.json", ".tar")
    with tarfile.open(archive) as tar:
        (entry,) = json.loads(read_archived(tar, INDEX_FILE))["manifests"]
    if entry["digest"] != signed:
        raise SignatureError(f"{archive.name} holds {entry['digest']}, signed is {signed}")
    return signed.removeprefix("sha256:")


def main(argv: Sequence[str] | None = None) -> int:
    """Say what holds; 1 with what does not."""
    parser = argparse.ArgumentParser(prog="python -m tools.release.verify", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--key", type=Path, required=True, help="the public key, in PEM")
    options = parser.parse_args(argv)
    try:
        print(*check(options.folder, public_pem=options.key.read_bytes()), sep="\n")
    except SignatureError as error:
        print(f"verify: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
