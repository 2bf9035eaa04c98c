from __future__ import annotations

import json
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import NameOID

from tools.cluster.certificates import new_authority, write_kubeconfig


def test_a_server_is_known_by_its_names_and_signed_by_the_authority() -> None:
    authority = new_authority()
    pair = authority.issue(common_name="kube-apiserver", names=["127.0.0.1", "localhost"])
    certificate = x509.load_pem_x509_certificate(pair.certificate)

    certificate.verify_directly_issued_by(authority.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]


def test_a_client_is_a_user_and_a_group() -> None:
    pair = new_authority().issue(common_name="system:node:node-0", organization="system:nodes")
    subject = x509.load_pem_x509_certificate(pair.certificate).subject
    assert [
        subject.get_attributes_for_oid(oid)[0].value
        for oid in (NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME)
    ] == ["system:node:node-0", "system:nodes"]


def test_keys_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    authority = new_authority()
    pair = authority.issue(common_name="admin")
    _, key = pair.write(tmp_path, "admin")
    config = write_kubeconfig(
        tmp_path / "kubeconfig", server="https://127.0.0.1:1", authority=authority, pair=pair
    )
    assert [file.stat().st_mode & 0o777 for file in (key, config)] == [0o600, 0o600]
    assert json.loads(config.read_text())["clusters"][0]["cluster"]["server"] == (
        "https://127.0.0.1:1"
    )
