"""A certificate authority for one throwaway cluster, and kubeconfigs that carry its certificates.

Keys are elliptic (P-256): made in microseconds, where RSA would cost a second a start.
"""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME = dt.timedelta(days=365)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Write NAME.crt and NAME.key; the key is readable by its owner only."""
        certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
        certificate.write_bytes(self.certificate)
        key.touch(mode=0o600)
        key.write_bytes(self.key)
        return certificate, key


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """Signs every certificate of one cluster; its own key never leaves this object."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def issue(
        self, *, common_name: str, organization: str | None = None, names: Sequence[str] = ()
    ) -> KeyPair:
        """A certificate for a client (a user of that name and group) or, with `names`, a server."""
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
        if organization is not None:
            attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = _builder(x509.Name(attributes), self.certificate.subject, key.public_key())
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if names:
            alternatives = x509.SubjectAlternativeName([_alternative(name) for name in names])
            builder = builder.add_extension(alternatives, critical=False)
        certificate = builder.sign(self.key, hashes.SHA256())
        return KeyPair(
            certificate=certificate.public_bytes(serialization.Encoding.PEM), key=_pem(key)
        )


def new_authority() -> Authority:
    """A self-signed authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "drumline-throwaway")])
    builder = _builder(name, name, key.public_key())
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return Authority(certificate=builder.sign(key, hashes.SHA256()), key=key)


def new_signing_key() -> tuple[bytes, bytes]:
    """Private and public PEM for service-account tokens."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return _pem(key), public


def write_kubeconfig(path: Path, *, server: str, authority: Authority, pair: KeyPair) -> Path:
    """A kubeconfig with everything inside it (JSON, which is YAML), readable by its owner only."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "drumline",
                "cluster": {"server": server, "certificate-authority-data": _b64(authority.pem)},
            }
        ],
        "users": [
            {
                "name": "drumline",
                "user": {
                    "client-certificate-data": _b64(pair.certificate),
                    "client-key-data": _b64(pair.key),
                },
            }
        ],
        "contexts": [{"name": "drumline", "context": {"cluster": "drumline", "user": "drumline"}}],
        "current-context": "drumline",
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(content, indent=1))
    return path


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))  # a suspended machine's clock
        .not_valid_after(now + _LIFETIME)
    )


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _b64(content: bytes) -> str:
    return base64.b64encode(content).decode()
