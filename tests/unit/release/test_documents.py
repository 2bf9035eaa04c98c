"""Bill of materials, VEX and provenance of a release."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from typing import Any

from tools.release import provenance, sbom, vex
from tools.release.images import Image
from tools.release.source import Source

Json = dict[str, Any]


def bill(image: Image, source: Source) -> Json:
    return sbom.document(image, image.variants[0], source=source)


def test_a_bill_lists_the_packages_that_are_in_the_image(image: Image, source: Source) -> None:
    document = bill(image, source)
    versions = {package["name"]: package["versionInfo"] for package in document["packages"]}
    assert versions == {
        "drumline/operator": "9.8.7",
        "base-files": "1:2+b3",
        "base-passwd": "1:2+b3",
        "ca-certificates": "1:2+b3",
        "libc-bin": "1:2+b3",
        "flask-extra": "1.0+local",
        "ply": "3",
    }
    locators = {
        package["name"]: package["externalRefs"][0]["referenceLocator"]
        for package in document["packages"]
    }
    assert locators["libc-bin"] == "pkg:deb/debian/libc-bin@1%3A2%2Bb3?arch=all&distro=bookworm"
    assert locators["flask-extra"] == "pkg:pypi/flask-extra@1.0%2Blocal"


def test_every_package_of_a_bill_is_contained_and_its_identifier_valid(
    image: Image, source: Source
) -> None:
    document = bill(image, source)
    identifiers = [package["SPDXID"] for package in document["packages"]]
    assert all(re.fullmatch(r"SPDXRef-[a-zA-Z0-9.-]+", each) for each in identifiers)
    assert len(identifiers) == len(set(identifiers))
    contained = [
        relationship["relatedSpdxElement"]
        for relationship in document["relationships"]
        if relationship["relationshipType"] == "CONTAINS"
    ]
    assert [document["documentDescribes"][0], *contained] == identifiers


def test_a_license_is_declared_where_the_metadata_has_a_plain_one(
    image: Image, source: Source
) -> None:
    packages = {package["name"]: package for package in bill(image, source)["packages"]}
    assert packages["flask-extra"]["licenseDeclared"] == "MIT"
    assert packages["ply"]["licenseDeclared"] == "NOASSERTION"
    assert packages["ply"]["comment"] == "its metadata states: BSD"
    assert "/usr/share/doc/libc-bin/copyright" in packages["libc-bin"]["comment"]


def test_a_bill_is_the_same_twice_and_another_for_another_image(
    image: Image, source: Source
) -> None:
    assert bill(image, source) == bill(image, source)
    other = replace(image.variants[0], digest="sha256:ff")
    document = sbom.document(image, other, source=source)
    assert document["documentNamespace"] != bill(image, source)["documentNamespace"]


def test_a_vex_statement_names_the_image_by_its_digest(image: Image, source: Source) -> None:
    (statement,) = vex.document([image], source=source)["statements"]
    assert statement["vulnerability"] == {"name": "CVE-2023-45853"}
    assert statement["status"] == "not_affected"
    assert statement["justification"] == "vulnerable_code_not_present"
    (product,) = statement["products"]
    assert product["@id"] == f"pkg:oci/operator@sha256%3A{'d' * 64}?arch=arm64"


def test_the_provenance_names_files_images_commit_and_what_went_in(
    image: Image, source: Source
) -> None:
    statement = provenance.statement(
        {"a.tgz": "f" * 64}, [image], source=source, parameters={"architectures": {}}
    )
    assert statement["subject"] == [
        {"name": "a.tgz", "digest": {"sha256": "f" * 64}},
        {"name": "drumline/operator", "digest": {"sha256": "e" * 64}},
    ]
    definition = statement["predicate"]["buildDefinition"]
    digests = {each["name"]: each["digest"] for each in definition["resolvedDependencies"]}
    lock = hashlib.sha256(provenance.LOCK.read_bytes()).hexdigest()
    assert digests["source"] == {"gitCommit": "c" * 40}
    assert digests["requirements.lock"] == {"sha256": lock}
    package = image.variants[0].packages[0]
    assert digests["base-files_1:2+b3_all.deb"] == {"sha256": package.sha256}
    assert definition["internalParameters"]["modifiedFiles"] is False
