from __future__ import annotations

from pathlib import Path

import pytest

from drumline_trainer.compiled_kernels.signing_key import NoKeyError, signing_key

PLACE = Path(".local/state/drumline/kernels.key")


def key_of_user(home: Path, **more: str) -> bytes:
    return signing_key(in_job=False, environ={"HOME": str(home), **more})


def key_of_job(folder: Path, token: bytes) -> bytes:
    (folder / "token").write_bytes(token)
    return signing_key(in_job=True, environ={"DRUMLINE_TOKEN_FILE": str(folder / "token")})


def test_a_jobs_key_follows_from_its_token_and_is_not_the_token(tmp_path: Path) -> None:
    first, again, other = (key_of_job(tmp_path, token) for token in (b"a", b"a", b"b"))
    assert first == again
    assert first not in {other, b"a"}
    assert len(first) == 32


def test_a_job_without_its_token_takes_no_key_of_a_user(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "DRUMLINE_TOKEN_FILE": str(tmp_path / "none")}
    with pytest.raises(NoKeyError, match="none: No such file"):
        signing_key(in_job=True, environ=environ)
    with pytest.raises(NoKeyError, match="is empty"):
        key_of_job(tmp_path, b"")


def test_a_users_key_is_made_once_and_nobody_else_reads_it(tmp_path: Path) -> None:
    first = key_of_user(tmp_path / "a")
    assert key_of_user(tmp_path / "a") == first
    assert key_of_user(tmp_path / "b") != first
    assert (tmp_path / "a" / PLACE).stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in (tmp_path / "a" / PLACE).parent.iterdir()] == ["kernels.key"]


def test_a_user_may_name_another_place_for_state(tmp_path: Path) -> None:
    key_of_user(tmp_path / "home", XDG_STATE_HOME=str(tmp_path / "state"))
    assert (tmp_path / "state/drumline/kernels.key").is_file()


def test_a_key_that_others_could_know_is_not_used(tmp_path: Path) -> None:
    key_of_user(tmp_path)
    (tmp_path / PLACE).chmod(0o640)
    with pytest.raises(NoKeyError, match=r"others can read .*; run: chmod 600"):
        key_of_user(tmp_path)


def test_a_link_and_a_file_of_another_size_are_no_key(tmp_path: Path) -> None:
    key_of_user(tmp_path)
    path = tmp_path / PLACE
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NoKeyError):
        key_of_user(tmp_path)
    path.unlink()
    path.touch(mode=0o600)
    with pytest.raises(NoKeyError, match="holds no key"):
        key_of_user(tmp_path)


@pytest.mark.parametrize("home", ["", "relative"])
def test_a_user_without_a_home_has_no_key(home: str) -> None:
    with pytest.raises(NoKeyError, match="no home"):
        signing_key(in_job=False, environ={"HOME": home})


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / ".local").touch()
    with pytest.raises(NoKeyError, match="Not a directory"):
        key_of_user(tmp_path)
