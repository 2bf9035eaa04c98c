"""Signatures with a local key: ECDSA on P-256 over SHA-256, as cosign makes and openssl verifies.

Nothing is sent anywhere, and no transparency log knows of it: a signature says that the holder of
the key made the file, and whose key that is must be known from elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

Json = dict[str, Any]

PAYLOAD_TYPE = "application/vnd.in-toto+json"
_ALGORITHM = ec.ECDSA(hashes.SHA256(), deterministic_signing=True)  # RFC 6979: the same again


class SignatureError(Exception):
    """A key cannot be used, or a signature is not that of the key and the content."""


@dataclass(frozen=True, slots=True)
class Key:
    """A private key."""

    _private: ec.EllipticCurvePrivateKey

    @property
    def public_pem(self) -> bytes:
        """The public key as openssl and cosign read it."""
        return self._private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def sign(self, content: bytes) -> bytes:
        """The signature as `cosign sign-blob` writes it: DER in base64."""
        return base64.b64encode(self._private.sign(content, _ALGORITHM))

    def envelope(self, statement: Json) -> Json:
        """An in-toto statement in a DSSE envelope.

        https://github.com/secure-systems-lab/dsse/blob/v1.0.2/envelope.md
        """
        payload = json.dumps(statement, sort_keys=True).encode()
        signature = self.sign(authenticated(PAYLOAD_TYPE, payload)).decode()
        return {
            "payloadType": PAYLOAD_TYPE,
            "payload": base64.b64encode(payload).decode(),
            "signatures": [{"keyid": key_id(self.public_pem), "sig": signature}],
        }


def load_key(path: Path, *, make: bool) -> Key:
    """The key of a PEM file.

    Args:
        path: of the file.
        make: write a new one, for its owner alone, where there is none.

    Raises:
        SignatureError: the file is no unencrypted private key on P-256, others may read it, or it
            is not there.
    """
    if not path.exists():
        if not make:
            raise SignatureError(f"there is no key {path}")
        path.parent.mkdir(parents=True, exist_ok=True)
        private = ec.generate_private_key(ec.SECP256R1())
        text = private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(text)
    if path.stat().st_mode & 0o077:
        raise SignatureError(f"{path} can be read by others: chmod 600 {path}")
    try:
        loaded = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise SignatureError(f"{path} is no unencrypted private key: {error}") from None
    if not isinstance(loaded, ec.EllipticCurvePrivateKey) or loaded.curve.name != "secp256r1":
        raise SignatureError(f"{path} is no key on the curve P-256")
    return Key(loaded)


def verify(content: bytes, signature: bytes, *, public_pem: bytes) -> None:
    """Check a signature of `Key.sign`.

    Raises:
        SignatureError: it is not the key's, or the content is another.
    """
    public = serialization.load_pem_public_key(public_pem)
    if not isinstance(public, ec.EllipticCurvePublicKey):
        raise SignatureError("the public key is not on an elliptic curve")
    try:
        public.verify(base64.b64decode(signature), content, _ALGORITHM)
    except (InvalidSignature, ValueError):
        raise SignatureError("the signature is not that of this key and this content") from None


def opened(envelope: Json, *, public_pem: bytes) -> Json:
    """The statement of an envelope whose signature holds.

    Raises:
        SignatureError: it does not.
    """
    payload = base64.b64decode(envelope["payload"])
    content = authenticated(envelope["payloadType"], payload)
    (entry,) = envelope["signatures"]
    verify(content, entry["sig"].encode(), public_pem=public_pem)
    return json.loads(payload)


def authenticated(payload_type: str, payload: bytes) -> bytes:
    """DSSE's encoding of what is signed (PAE)."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def key_id(public_pem: bytes) -> str:
    """SHA-256 of the public key in DER."""
    der = serialization.load_pem_public_key(public_pem).public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(der).hexdigest()


def image_payload(reference: str, digest: str) -> bytes:
    """What cosign signs of an image.

    https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md
    """
    payload = {
        "critical": {
            "identity": {"docker-reference": reference},
            "image": {"docker-manifest-digest": digest},
            "type": "cosign container image signature",
        },
        "optional": None,
    }
    return json.dumps(payload).encode()
