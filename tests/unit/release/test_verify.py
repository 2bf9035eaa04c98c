"""A release is refused as soon as anything in it is not what was signed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.release import verify
from tools.release.__main__ import sign
from tools.release.images import Image
from tools.release.oci import INDEX, Layout, pack
from tools.release.signing import Key, SignatureError, load_key
from tools.release.source import Source


@pytest.fixture
def key(tmp_path: Path) -> Key:
    return load_key(tmp_path / "key.pem", make=True)


@pytest.fixture
def release(tmp_path: Path, key: Key, source: Source) -> Path:
    """A chart's archive and an image, signed."""
    folder = tmp_path / "release"
    folder.mkdir()
    (folder / "drumline-9.8.7.tgz").write_bytes(b"chart")
    layout = Layout(tmp_path / "layout")
    digest = layout.add_json({"manifests": []}, media_type=INDEX)
    layout.list(digest, reference="9.8.7")
    layout.finish()
    pack(tmp_path / "layout", folder / "operator-9.8.7.tar")
    image = Image(name="operator", digest=digest["digest"], variants=[])
    sign(folder, [image], key=key, parameters={}, source=source)
    return folder


def test_a_release_as_it_was_made_is_verified(release: Path, key: Key) -> None:
    assert verify.check(release, public_pem=key.public_pem) == [
        "7 files are those of SHA256SUMS, which the key signed",
        "1 images have the digests that the key signed",
        "the provenance is about 5 of them",
    ]


def append(name: str) -> Callable[[Path, Key], None]:
    def change(folder: Path, _: Key) -> None:
        with (folder / name).open("ab") as file:
            file.write(b" ")

    return change


def add_a_file(folder: Path, _: Key) -> None:
    (folder / "more.whl").write_text("planted")


def remove_a_file(folder: Path, _: Key) -> None:
    (folder / "drumline-9.8.7.tgz").unlink()


def sums_of_what_was_changed(folder: Path, key: Key) -> None:
    """The chart is another, and so are its sum and the sums' signature: the key is stolen."""
    (folder / "drumline-9.8.7.tgz").write_bytes(b"another")
    resign(folder, key)


def another_image(folder: Path, key: Key) -> None:
    """An image in the place of the one whose digest is signed, in new sums."""
    layout = Layout(folder.parent / "other")
    layout.list(layout.add_json({"manifests": [1]}, media_type=INDEX), reference="9.8.7")
    layout.finish()
    pack(folder.parent / "other", folder / "operator-9.8.7.tar")
    resign(folder, key)


def resign(folder: Path, key: Key) -> None:
    listed = verify.sums(folder, but={"SHA256SUMS", "SHA256SUMS.sig"})
    text = "".join(f"{digest}  {name}\n" for name, digest in listed.items()).encode()
    (folder / "SHA256SUMS").write_bytes(text)
    (folder / "SHA256SUMS.sig").write_bytes(key.sign(text))


CHANGES = {
    "a file": (append("drumline-9.8.7.tgz"), "drumline-9.8.7.tgz"),
    "the sums": (append("SHA256SUMS"), "SHA256SUMS.sig"),
    "their signature": (append("operator-9.8.7.cosign.json.sig"), "cosign.json.sig"),
    "one file more": (add_a_file, "more.whl"),
    "one file less": (remove_a_file, "drumline-9.8.7.tgz"),
    "file and sums": (sums_of_what_was_changed, "drumline-9.8.7.tgz.sig"),
    "an image and sums": (another_image, "operator-9.8.7.tar holds"),
}


@pytest.mark.parametrize(("change", "named"), CHANGES.values(), ids=CHANGES)
def test_what_was_changed_is_named(
    release: Path, key: Key, change: Callable[[Path, Key], None], named: str
) -> None:
    change(release, key)
    with pytest.raises(SignatureError, match=named):
        verify.check(release, public_pem=key.public_pem)


def test_the_provenance_of_another_release_is_refused(release: Path, key: Key) -> None:
    envelope = key.envelope(
        {"subject": [{"name": "drumline-9.8.7.tgz", "digest": {"sha256": "0"}}]}
    )
    (release / "provenance.intoto.json").write_text(json.dumps(envelope))
    resign(release, key)
    with pytest.raises(SignatureError, match="the provenance is about another drumline"):
        verify.check(release, public_pem=key.public_pem)


def test_another_key_is_refused_on_the_command_line(
    release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.pub"
    other.write_bytes(load_key(tmp_path / "other.pem", make=True).public_pem)
    assert verify.main([str(release), "--key", str(other)]) == 1
    assert "SHA256SUMS.sig" in capsys.readouterr().err
    assert verify.main([str(release), "--key", str(release / "drumline.pub")]) == 0
