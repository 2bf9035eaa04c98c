"""Signatures that openssl verifies, and envelopes that hold what was signed."""

from __future__ import annotations

import base64
import json
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from tools.release.signing import (
    Key,
    SignatureError,
    authenticated,
    image_payload,
    load_key,
    opened,
    verify,
)


@pytest.fixture
def key(tmp_path: Path) -> Key:
    return load_key(tmp_path / "folder" / "key.pem", make=True)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_openssl_verifies_a_signature(key: Key, tmp_path: Path) -> None:
    (tmp_path / "key.pub").write_bytes(key.public_pem)
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "file.der").write_bytes(base64.b64decode(key.sign(b"content")))
    command = ["openssl", "dgst", "-sha256", "-verify", "key.pub", "-signature", "file.der"]
    done = subprocess.run(
        [*command, "file"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "Verified OK\n")


def test_the_same_content_is_signed_the_same(key: Key) -> None:
    assert key.sign(b"content") == key.sign(b"content")


@pytest.mark.parametrize(
    ("content", "signature"), [(b"other", None), (b"content", b"AAAA"), (b"content", b"no base64")]
)
def test_another_content_or_signature_is_refused(
    key: Key, content: bytes, signature: bytes | None
) -> None:
    with pytest.raises(SignatureError):
        verify(content, signature or key.sign(b"content"), public_pem=key.public_pem)


def test_another_key_is_refused(key: Key, tmp_path: Path) -> None:
    other = load_key(tmp_path / "other.pem", make=True)
    with pytest.raises(SignatureError):
        verify(b"content", key.sign(b"content"), public_pem=other.public_pem)


def test_a_key_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    assert load_key(file, make=True).public_pem == load_key(file, make=True).public_pem
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_key_that_is_not_there_or_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    with pytest.raises(SignatureError, match="there is no key"):
        load_key(file, make=False)
    load_key(file, make=True)
    file.chmod(0o640)
    with pytest.raises(SignatureError, match="can be read by others"):
        load_key(file, make=False)


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    file.touch(mode=0o600)
    file.write_bytes(
        ed25519.Ed25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    with pytest.raises(SignatureError, match="P-256"):
        load_key(file, make=True)
    file.write_text("no key")
    with pytest.raises(SignatureError, match="no unencrypted private key"):
        load_key(file, make=True)


def test_an_envelope_gives_its_statement_back_unless_it_was_changed(key: Key) -> None:
    envelope = key.envelope({"a": 1})
    assert opened(envelope, public_pem=key.public_pem) == {"a": 1}
    changed = {**envelope, "payload": base64.b64encode(b'{"a": 2}').decode()}
    with pytest.raises(SignatureError):
        opened(changed, public_pem=key.public_pem)


def test_an_envelope_signs_type_and_length_as_dsse_says() -> None:
    # the example of the specification
    signed = authenticated("http://example.com/HelloWorld", b"hello world")
    assert signed == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"


def test_an_images_payload_is_cosigns() -> None:
    payload = json.loads(image_payload("drumline/operator", "sha256:abc"))
    assert payload == {
        "critical": {
            "identity": {"docker-reference": "drumline/operator"},
            "image": {"docker-manifest-digest": "sha256:abc"},
            "type": "cosign container image signature",
        },
        "optional": None,
    }
