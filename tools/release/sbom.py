"""What an image contains, as SPDX 2.3 in JSON: Debian's packages and Python's.

Both are read from what was put into the image, not from what was asked for.
https://spdx.github.io/spdx-spec/v2.3/
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.utils import canonicalize_name

from tools.release import debian
from tools.release.images import Image, Variant
from tools.release.source import Source

Json = dict[str, Any]

NOT_STATED = "NOASSERTION"
_SIMPLE_LICENSES = {"Apache-2.0", "MIT", "BSD-2-Clause", "BSD-3-Clause", "ISC", "PSF-2.0", "0BSD"}
"""Of SPDX; another expression of a package's metadata is handed on as a comment alone."""


def document(image: Image, variant: Variant, *, source: Source) -> Json:
    """The document of an image for one architecture."""
    name = f"drumline-{image.name}-{source.version}-{variant.architecture}"
    root: Json = {
        "SPDXID": "SPDXRef-image",
        "name": f"drumline/{image.name}",
        "versionInfo": source.version,
        "primaryPackagePurpose": "CONTAINER",
        "checksums": [_sha256(variant.digest.removeprefix("sha256:"))],
        **_license("Apache-2.0"),
        **_purl(image_purl(image, variant)),
    }
    parts = [
        *(_debian_package(package) for package in variant.packages),
        *_python_packages(variant.site),
    ]
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, variant.digest)}",
        "creationInfo": {
            "created": source.time,
            "creators": [f"Tool: drumline-release-{source.version}"],
        },
        "documentDescribes": [root["SPDXID"]],
        "packages": [root, *parts],
        "relationships": [
            _related("SPDXRef-DOCUMENT", "DESCRIBES", root["SPDXID"]),
            *(_related(root["SPDXID"], "CONTAINS", part["SPDXID"]) for part in parts),
        ],
    }


def image_purl(image: Image, variant: Variant) -> str:
    """The image's name in a package URL: by its digest, in no registry."""
    digest = quote(variant.digest, safe="")
    return f"pkg:oci/{image.name}@{digest}?arch={variant.architecture}"


def debian_purl(package: debian.Package) -> str:
    """A Debian package's name in a package URL."""
    version, architecture = quote(package.version, safe=""), package.architecture
    return f"pkg:deb/debian/{package.name}@{version}?arch={architecture}&distro={debian.SUITE}"


def _debian_package(package: debian.Package) -> Json:
    return {
        "SPDXID": f"SPDXRef-deb-{_identifier(package.name)}",
        "name": package.name,
        "versionInfo": package.version,
        "checksums": [_sha256(package.sha256)],
        **_license(NOT_STATED),
        "comment": f"its licenses: /usr/share/doc/{package.name}/copyright in the image",
        **_purl(debian_purl(package)),
    }


def _python_packages(site: Path) -> Iterator[Json]:
    for metadata in sorted(site.glob("*.dist-info/METADATA")):
        fields = HeaderParser().parsestr(metadata.read_text())
        name, version = str(canonicalize_name(fields["Name"])), fields["Version"]
        stated = fields["License-Expression"] or fields["License"] or ""
        package: Json = {
            "SPDXID": f"SPDXRef-pypi-{_identifier(name)}",
            "name": name,
            "versionInfo": version,
            **_license(stated if stated in _SIMPLE_LICENSES else NOT_STATED),
            **_purl(f"pkg:pypi/{name}@{quote(version, safe='')}"),
        }
        if stated and stated not in _SIMPLE_LICENSES:
            package["comment"] = f"its metadata states: {stated.splitlines()[0]}"
        yield package


def _license(declared: str) -> Json:
    return {
        "downloadLocation": NOT_STATED,
        "filesAnalyzed": False,
        "licenseConcluded": NOT_STATED,
        "licenseDeclared": declared,
        "copyrightText": NOT_STATED,
        "supplier": NOT_STATED,
    }


def _purl(locator: str) -> Json:
    reference = {
        "referenceCategory": "PACKAGE-MANAGER",
        "referenceType": "purl",
        "referenceLocator": locator,
    }
    return {"externalRefs": [reference]}


def _sha256(value: str) -> Json:
    return {"algorithm": "SHA256", "checksumValue": value}


def _related(element: str, kind: str, related: str) -> Json:
    return {
        "spdxElementId": element,
        "relationshipType": kind,
        "relatedSpdxElement": related,
    }


def _identifier(name: str) -> str:
    """SPDX allows letters, digits, dots and dashes; `libstdc++6` has others."""
    return re.sub(r"[^a-zA-Z0-9.-]", lambda match: f"-x{ord(match[0]):x}", name)
