"""What scanners report of the images and does not concern them, as OpenVEX.

Each statement names how it is known, and `tools/release` looks at the image for it. No scan is part
of a release: what is not stated here was not examined.
https://github.com/openvex/spec/blob/main/OPENVEX-SPEC.md
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tools.release.images import Image
from tools.release.oci import encoded
from tools.release.sbom import debian_purl, image_purl
from tools.release.source import Source

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotAffected:
    """A vulnerability of a Debian package whose code is not in the image.

    Attributes:
        absent: a symbol of that code; no file of the package has it.
    """

    vulnerability: str
    package: str
    absent: bytes
    statement: str


STATEMENTS = (
    NotAffected(
        vulnerability="CVE-2023-45853",
        package="zlib1g",
        absent=b"zipOpenNewFileInZip4_64",
        statement="The overflow is in MiniZip (contrib/minizip). Debian does not build it into "
        "zlib1g: libz.so.1 has none of its functions.",
    ),
)


def document(images: Sequence[Image], *, source: Source) -> Json:
    """The statements about all images of a release."""
    statements = [_statement(each, images) for each in STATEMENTS]
    digest = hashlib.sha256(encoded({"statements": statements})).hexdigest()
    return {
        "@context": "https://openvex.dev/ns/v0.2.0",
        "@id": f"https://openvex.dev/docs/public/vex-{digest}",
        "author": "Drumline",
        "timestamp": source.time,
        "version": 1,
        "statements": statements,
    }


def _statement(known: NotAffected, images: Sequence[Image]) -> Json:
    products = [
        {
            "@id": image_purl(image, variant),
            "subcomponents": [
                {"@id": debian_purl(package)}
                for package in variant.packages
                if package.name == known.package
            ],
        }
        for image in images
        for variant in image.variants
    ]
    return {
        "vulnerability": {"name": known.vulnerability},
        "products": products,
        "status": "not_affected",
        "justification": "vulnerable_code_not_present",
        "impact_statement": known.statement,
    }
