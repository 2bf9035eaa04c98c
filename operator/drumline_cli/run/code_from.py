"""Code in no ConfigMap: a folder of a claim, a commit that pods fetch, or a folder in a bucket.

For code that is too large for ConfigMaps, or that has to be a certain commit. A claim's folder is
what it is when a pod starts: whoever edits it edits the code of the next restart. A commit is
fetched by an init container in each pod, by its hash, so a replaced pod has the same files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from drumline_cli.errors import BadInput
from drumline_cli.run.bucket import FORM as S3
from drumline_cli.run.bucket import CodeInBucket, code_in_bucket
from drumline_cli.run.git import ask_git
from drumline_cli.run.requirements import with_init_container, with_volume
from drumline_contract import CODE_FOLDER, plain

Json = dict[str, Any]

FORMS: Final = f"claim:NAME[/FOLDER], git, git:https://HOST/REPOSITORY@COMMIT, or {S3}"
FETCH: Final = """\
git init -q "$1"
cd "$1"
git fetch -q --depth 1 "$2" "$3" || git fetch -q "$2" '+refs/heads/*:refs/remotes/origin/*'
git -c advice.detachedHead=false checkout -q "$3"
"""
"""For `sh -ec`, with folder, address and commit; a server that gives no single commit gives all."""
_VOLUME: Final = "code"
_REPOSITORY: Final = f"{CODE_FOLDER}/repository"
_COMMIT: Final = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
# A user name before `@` may be a token.
_WITH_USER: Final = re.compile(r"https?://([^/]*@|.*[?#])")
_SSH: Final = re.compile(r"(?:ssh://)?(?:\w+@)?(\w[\w.-]*)(?::\d+)?[:/](.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeOnClaim:
    """A folder of a PersistentVolumeClaim of the job's namespace."""

    claim: str
    folder: str = ""

    def within(self, template: Json) -> Json:
        """Return the template with the folder at /code, where the command starts."""
        mount: Json = {"name": _VOLUME, "mountPath": CODE_FOLDER}
        # subPath mounts only the folder, so the pods cannot see the rest of the claim.
        if self.folder:
            mount["subPath"] = self.folder
        volume = {"name": _VOLUME, "persistentVolumeClaim": {"claimName": self.claim}}
        return with_volume({**template, "workingDir": CODE_FOLDER}, volume, mount=mount)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeInGit:
    """A commit that pods can fetch."""

    address: str
    commit: str
    folder: str = ""
    """Within the repository, where the command starts."""
    image: str = ""
    """An image that contains git and a shell. Empty: the image of the job."""

    def within(self, template: Json) -> Json:
        """Return the template with an init container that fetches the commit."""
        mount = {"name": _VOLUME, "mountPath": CODE_FOLDER}
        fetch: Json = {
            "name": "code",
            "command": ["sh", "-ec", FETCH, "sh", _REPOSITORY, self.address, self.commit],
            # A prompt would hang the init container forever.
            "env": [{"name": "GIT_TERMINAL_PROMPT", "value": "0"}, *template.get("env", [])],
            "volumeMounts": [mount],
        }
        if self.image:
            fetch["image"] = self.image
        begun = {**template, "workingDir": str(PurePosixPath(_REPOSITORY) / self.folder)}
        scratch: Json = {"name": _VOLUME, "emptyDir": {}}
        return with_volume(with_init_container(begun, fetch), scratch, mount=mount)


CodeFrom = CodeOnClaim | CodeInGit | CodeInBucket


def code_from(
    text: str, *, folder: Path, image: str, environment: Mapping[str, str], secret: str = ""
) -> CodeFrom:
    """Return the place of the code.

    Args:
        text: value of `--code-from`.
        folder: folder with the code. `git` and `s3` read it; the other forms do not.
        image: image that contains git. Empty: the image of the job.
        environment: environment variables of this process.
        secret: Secret that gives pods the key of a bucket. Empty: none.

    Raises:
        BadInput: it is of no such form, or the commit is not one that pods can fetch.
    """
    kind, _, rest = text.partition(":")
    # The forms are tried from the most specific prefix.
    if kind == "claim" and rest:
        claim, _, inside = rest.partition("/")
        # Two dots would leave the claim's folder.
        if not _NAME.fullmatch(claim) or ".." in PurePosixPath(inside).parts:
            raise BadInput(
                f"invalid --code-from {plain(text)}: want claim:NAME or claim:NAME/FOLDER"
            )
        return CodeOnClaim(claim=claim, folder=inside.strip("/"))
    if kind == "s3":
        return code_in_bucket(text, folder=folder, secret=secret, environment=environment)
    if text == "git":
        return _commit_here(folder, image=image, environment=environment)
    if kind == "git":
        # The address may contain `@`, so the last one separates the commit.
        address, _, commit = rest.rpartition("@")
        return CodeInGit(address=_fetchable(address), commit=_full(commit), image=image)
    raise BadInput(f"invalid --code-from {plain(text)}: want {FORMS}")


def _commit_here(folder: Path, *, image: str, environment: Mapping[str, str]) -> CodeInGit:
    """Return the commit that a folder has checked out, if a remote has it, too."""

    def git(*arguments: str) -> str:
        return _git(folder, arguments, environment)

    # Uncommitted changes would be missing in the pods without any notice.
    if changed := git("status", "--porcelain", "--ignore-submodules=dirty").splitlines():
        raise BadInput(
            f"--code-from git: {len(changed)} files of {folder} are not committed, the first is"
            f" {plain(changed[0][3:])}; commit and push them, or remove --code-from"
        )
    commit = git("rev-parse", "HEAD")
    # A commit that is only local cannot be fetched by pods.
    if not git("branch", "--remotes", "--list", "origin/*", "--contains", commit):
        raise BadInput(
            f"--code-from git: commit {commit[:12]} is on no branch of origin; push it first"
        )
    return CodeInGit(
        address=_fetchable(git("remote", "get-url", "origin")),
        # The command starts in the same folder as here.
        commit=commit,
        folder=git("rev-parse", "--show-prefix").strip("/"),
        image=image,
    )


def _fetchable(address: str) -> str:
    """Return an address that needs no key of the user's, and carries none."""
    if _WITH_USER.match(address):
        raise BadInput(
            "--code-from git: the address may contain a user or a token, which anyone who may"
            " read the job could read; use an address without credentials, or put the code on a"
            " claim"
        )
    if address.startswith(("https://", "http://", "file://")):
        return address
    ssh = _SSH.fullmatch(address)
    instead = f"https://{ssh[1]}/{ssh[2]}" if ssh else "https://HOST/REPOSITORY"
    raise BadInput(
        f"--code-from git: pods have no key for {plain(address)!r}; use --code-from"
        f" git:{plain(instead)}@COMMIT"
    )


def _full(commit: str) -> str:
    # A short commit could become ambiguous later.
    if not _COMMIT.fullmatch(commit):
        raise BadInput(
            f"--code-from git: {plain(commit)!r} is not a full commit ID, and branches and tags"
            " can move while a job runs; use the 40 digits of git rev-parse HEAD"
        )
    return commit


def _git(folder: Path, arguments: tuple[str, ...], environment: Mapping[str, str]) -> str:
    missing = f"--code-from git: git is not installed here; use {FORMS}"
    answer = ask_git(arguments, at=folder, environment=environment, missing=missing)
    if answer.code:
        raise BadInput(f"--code-from git: git fails in {folder}: {plain(answer.error[:500])}")
    return answer.output.decode(errors="replace").strip("\n")
