"""What the init container brings into a pod whose image is somebody else's."""

from __future__ import annotations

import io
import stat
import tarfile
import zlib
from pathlib import Path

import pytest

from drumline_agent.programs.install import install
from drumline_contract import ExitCode, code_digest


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    source = tmp_path / "bundle"
    (source / "bin").mkdir(parents=True, mode=0o700)
    python = source / "bin" / "python3"
    python.write_bytes(b"\x7fELF")
    python.chmod(0o755)
    (source / "bin" / "python").symlink_to("python3")
    return source


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """As a kubelet makes it for a group."""
    target = tmp_path / "volume"
    target.mkdir()
    target.chmod(0o2777)
    return target


def installed(bundle: Path, volume: Path, tmp_path: Path) -> int:
    gang = tmp_path / "gang"
    gang.mkdir(exist_ok=True)
    environment = {"DRUMLINE_GANG_FOLDER": str(gang), "DRUMLINE_POD_IP": "10.0.0.7"}
    return install(environment, source=bundle, target=volume)


def test_the_bundle_is_copied_and_the_volume_stays_root_s(
    bundle: Path, volume: Path, tmp_path: Path
) -> None:
    """Who copies is not the volume's owner, and may change neither its mode nor its times."""
    before = volume.stat()
    for _ in range(2):  # a kubelet may try again
        assert installed(bundle, volume, tmp_path) == ExitCode.OK
    python = volume / "bin" / "python3"
    assert python.read_bytes() == b"\x7fELF"
    assert stat.S_IMODE(python.stat().st_mode) == 0o755
    assert (volume / "bin" / "python").readlink() == Path("python3")
    assert volume.stat().st_mode == before.st_mode
    assert "10.0.0.7" in (tmp_path / "gang" / "hosts").read_text()


def test_an_image_without_the_agent_is_named(
    volume: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert installed(tmp_path / "nothing", volume, tmp_path) == ExitCode.CONFIG
    assert "agentImage" in capsys.readouterr().err


def test_the_job_s_code_is_unpacked_if_it_is_the_one_that_the_job_names(
    bundle: Path, volume: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts, code, gang = tmp_path / "parts", tmp_path / "code", tmp_path / "gang"
    for folder in (parts, code, gang):
        folder.mkdir()
    packed = packed_code({"train.py": b"print(1)\n"})
    (parts / "0").write_bytes(packed[:20])
    (parts / "1").write_bytes(packed[20:])
    environment = {
        "DRUMLINE_GANG_FOLDER": str(gang),
        "DRUMLINE_CODE_DIGEST": code_digest(packed),
    }

    def run() -> int:
        return install(environment, source=bundle, target=volume, code_parts=parts, code=code)

    assert run() == ExitCode.OK
    assert (code / "train.py").read_text() == "print(1)\n"
    (parts / "1").write_bytes(b"something else")
    assert run() == ExitCode.CONFIG
    assert "its digest is sha256:" in capsys.readouterr().err


def packed_code(files: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return zlib.compress(file.getvalue(), wbits=31)
