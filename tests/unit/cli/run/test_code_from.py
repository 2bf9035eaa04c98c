"""Code that is not packed: on a claim, or a commit that is fetched, here by real git."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from drumline_api.trainingjob import TrainingJobSpec
from drumline_cli.arguments import parser
from drumline_cli.errors import BadInput
from drumline_cli.run.code_from import FETCH, CodeInGit, CodeOnClaim, code_from
from drumline_cli.run.manifests import job_manifest
from drumline_cli.run.request import run_request

COMMIT = "0123456789abcdef0123456789abcdef01234567"
HERE = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}


def git(folder: Path, *arguments: str) -> str:
    author = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    command = ["git", "-C", str(folder), *author, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    folder = tmp_path / "remote.git"
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(folder)], check=True)
    return folder


@pytest.fixture
def clone(tmp_path: Path, remote: Path) -> Path:
    """With one commit that is pushed: a script in a folder."""
    folder = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", f"file://{remote}", str(folder)], check=True)
    (folder / "llm").mkdir()
    (folder / "llm" / "train.py").write_text("print('first')\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    git(folder, "push", "-q", "origin", "HEAD:main")
    git(folder, "fetch", "-q")
    return folder


def asked(text: str, *, folder: Path = Path(), image: str = "") -> Any:
    return code_from(text, folder=folder, image=image, environment=HERE)


def spec_of(*arguments: str) -> TrainingJobSpec:
    """Of the job that `drumline run` makes, read by the API's own model."""
    options = parser("drumline").parse_args(["run", "--image", "any:1", *arguments])
    options.command_line = ["python", "train.py"]
    request = run_request(options, HERE, queue="q", namespace=None, letters="abcd")
    return TrainingJobSpec.model_validate(job_manifest(request, None)["spec"])


def test_a_folder_of_a_claim_is_where_the_command_starts() -> None:
    assert asked("claim:code") == CodeOnClaim(claim="code")
    template = spec_of("--code-from", "claim:code/team/llm", "--claim", "corpus=/data").template
    assert template is not None
    assert template.working_dir == "/code"
    mounts = {mount.name: mount for mount in template.volume_mounts or []}
    assert (mounts["code"].mount_path, mounts["code"].sub_path) == ("/code", "team/llm")
    claims = [volume.persistent_volume_claim for volume in template.volumes or []]
    assert [claim.claim_name for claim in claims if claim] == ["corpus", "code"]


def test_the_commit_of_a_folder_is_fetched_before_packages_are_installed(
    clone: Path, remote: Path, tmp_path: Path
) -> None:
    (tmp_path / "requirements.txt").write_text("tidy==1.0\n")
    template = spec_of(
        *("--code-from", "git", "--folder", str(clone / "llm"), "--git-image", "git:1"),
        *("--requirements", str(tmp_path / "requirements.txt")),
    ).template
    assert template is not None
    assert template.working_dir == "/code/repository/llm"
    fetch, install = template.init_containers or []
    assert (fetch.name, fetch.image, install.name) == ("code", "git:1", "requirements")
    assert fetch.command[-2:] == [f"file://{remote}", git(clone, "rev-parse", "HEAD")]


def test_an_old_server_gives_a_commit_of_another_branch_that_is_no_tip(
    clone: Path, remote: Path, tmp_path: Path
) -> None:
    git(clone, "checkout", "-q", "-b", "feature")
    for number in (1, 2):
        (clone / "llm" / "train.py").write_text(f"print({number})\n")
        git(clone, "commit", "-q", "-a", "-m", str(number))
    git(clone, "push", "-q", "origin", "feature")
    commit = git(clone, "rev-parse", "HEAD~1")
    folder = tmp_path / "repository"
    arguments = [str(folder), f"file://{remote}", commit]
    old = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "protocol.version",
        "GIT_CONFIG_VALUE_0": "0",
    }
    subprocess.run(["sh", "-ec", FETCH, "sh", *arguments], check=True, env={**HERE, **old})
    assert (folder / "llm" / "train.py").read_text() == "print(1)\n"


def test_a_commit_that_another_remote_has_is_not_origin_s(clone: Path, tmp_path: Path) -> None:
    fork = tmp_path / "fork.git"
    subprocess.run(["git", "init", "-q", "--bare", str(fork)], check=True)
    git(clone, "remote", "add", "fork", f"file://{fork}")
    git(clone, "commit", "-q", "--allow-empty", "-m", "of the fork")
    git(clone, "push", "-q", "fork", "HEAD:main")
    git(clone, "fetch", "-q", "fork")
    with pytest.raises(BadInput, match="on no branch of origin"):
        asked("git", folder=clone)


@pytest.mark.parametrize("gives_single_commits", ["true", "false"])
def test_what_the_init_container_fetches_is_the_commit_and_not_what_came_later(
    clone: Path, remote: Path, tmp_path: Path, gives_single_commits: str
) -> None:
    code = asked("git", folder=clone)
    (clone / "llm" / "train.py").write_text("print('later')\n")
    git(clone, "commit", "-q", "-a", "-m", "later")
    git(clone, "push", "-q", "origin", "HEAD:main")
    git(remote, "config", "uploadpack.allowAnySHA1InWant", gives_single_commits)
    git(remote, "config", "uploadpack.allowReachableSHA1InWant", gives_single_commits)
    (fetch,) = code.within({"command": []})["initContainers"]
    folder = tmp_path / "pod" / "repository"
    command = [str(folder) if part == "/code/repository" else part for part in fetch["command"]]
    assert command[:3] == ["sh", "-ec", FETCH]
    for _ in range(2):  # a container that is started again finds what it left
        subprocess.run(command, check=True, env=HERE)
        assert (folder / "llm" / "train.py").read_text() == "print('first')\n"


def test_an_address_and_a_whole_commit() -> None:
    code = asked(f"git:https://git.example.com/team/llm.git@{COMMIT}")
    assert code == CodeInGit(address="https://git.example.com/team/llm.git", commit=COMMIT)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("gs://bucket", "want claim:NAME"),
        ("claim:", "want claim:NAME"),
        ("claim:Upper", "want claim:NAME or claim:NAME/FOLDER"),
        ("claim:a/../b", "want claim:NAME or claim:NAME/FOLDER"),
        ("git:https://git.example.com/a.git@main", "'main' is not a full commit ID"),
        (
            f"git:git@git.example.com:team/llm.git@{COMMIT}",
            r"use --code-from git:https://git\.example\.com/team/llm\.git@COMMIT",
        ),
        (f"git:--upload-pack=x@{COMMIT}", "pods have no key"),
        (f"git:https://t0ken@git.example.com/a.git@{COMMIT}", "may contain a user or a token"),
        (f"git:https://git.example.com/a?private_token=t0ken@{COMMIT}", "may contain a user or a"),
        (
            f"git:ssh://git@git.example.com:2222/team/llm.git@{COMMIT}",
            r"use --code-from git:https://git\.example\.com/team/llm\.git@COMMIT",
        ),
    ],
)
def test_what_no_pod_could_fetch_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        asked(text)


def test_a_commit_that_only_this_machine_has_is_refused(clone: Path) -> None:
    (clone / "llm" / "new.py").write_text("")
    with pytest.raises(BadInput, match=r"1 files.*llm/new\.py"):
        asked("git", folder=clone)
    git(clone, "add", ".")
    git(clone, "commit", "-q", "-m", "here alone")
    with pytest.raises(BadInput, match="is on no branch of origin; push it first"):
        asked("git", folder=clone)


def test_a_token_in_the_address_of_origin_goes_into_no_job(clone: Path) -> None:
    git(clone, "remote", "set-url", "origin", "https://user:t0ken@git.example.com/a.git")
    with pytest.raises(BadInput) as refused:
        asked("git", folder=clone)
    assert "t0ken" not in str(refused.value)


def test_a_folder_that_is_no_repository_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not a git repository"):
        asked("git", folder=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--code-from", "claim:a", "--no-code"), "--no-code and --code-from"),
        (("--git-image", "git:1"), "--git-image needs --code-from git"),
    ],
)
def test_options_that_contradict_each_other(arguments: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        spec_of(*arguments)
