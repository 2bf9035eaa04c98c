"""Into the pods of a job: which pod, and what kubectl is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drumline_cli.errors import BadInput, NotAnswered
from drumline_cli.jobs.follow import StartedPod
from drumline_cli.jobs.inside import (
    attach_arguments,
    chosen_pod,
    copy_arguments,
    copy_of,
    forward_arguments,
    shell_arguments,
)
from tests.unit.cli.manifests import a_manifest, a_running_status
from tests.unit.cli.test_program import JOB, api_server, drumline

PODS = "/api/v1/namespaces/team/pods"


def pods(*running: int, of: int = 4) -> list[StartedPod]:
    return [
        StartedPod(name=f"llama-{i}-g1", index=str(i), is_running=i in running) for i in range(of)
    ]


def test_a_rank_is_in_the_pod_that_has_it_and_without_one_it_is_the_first_that_runs() -> None:
    job = a_manifest(status=a_running_status())
    assert chosen_pod(job, pods(1, 2), rank=None).index == "1"
    assert chosen_pod(job, pods(0, 1, 2, 3), rank=17).index == "2"


def test_a_member_that_was_given_up_shifts_the_ranks_behind_it() -> None:
    status = {**a_running_status(), "assignment": {"nodes": ["a", "b"], "absent": [1]}}
    assert chosen_pod(a_manifest(status=status), pods(0, 2), rank=8).index == "2"


def test_a_pod_that_has_ended_is_not_entered() -> None:
    job = a_manifest(status=a_running_status())
    with pytest.raises(NotAnswered, match=r"rank 9.*llama"):
        chosen_pod(job, pods(0), rank=9)
    with pytest.raises(NotAnswered, match="llama has no running pod"):
        chosen_pod(job, [], rank=None)
    with pytest.raises(BadInput, match="ranks 0 to 31"):
        chosen_pod(job, pods(0), rank=32)


def test_the_side_with_the_job_is_in_the_pod() -> None:
    out = copy_of("llama:/tmp/a", "runs/b")
    assert copy_arguments("p", out) == ["cp", "--container=trainer", "p:/tmp/a", "runs/b"]
    into = copy_of("./a", "llama:/tmp")
    assert into.job == "llama"
    assert copy_arguments("p", into) == ["cp", "--container=trainer", "./a", "p:/tmp"]


@pytest.mark.parametrize("sides", [("a", "b"), ("llama:/a", "other:/b"), ("llama:", "b")])
def test_a_copy_has_one_side_here(sides: tuple[str, str]) -> None:
    with pytest.raises(BadInput, match="JOB:PATH"):
        copy_of(*sides)


def test_a_command_keeps_its_words_and_a_shell_has_a_terminal_where_there_is_one() -> None:
    command = shell_arguments("p", ["echo", "a b"], terminal=False)
    assert command == ["exec", "-i", "p", "--container=trainer", "--", "echo", "a b"]
    assert shell_arguments("p", [], terminal=True)[1:3] == ["-i", "-t"]
    assert forward_arguments("p", ["6006"]) == ["port-forward", "pod/p", "6006"]


def a_pod(index: int) -> Any:
    labels = {"drumline.dev/index": str(index)}
    container = {"name": "trainer", "state": {"running": {}}}
    return {
        "metadata": {"name": f"llama-{index}-g1", "labels": labels},
        "status": {"containerStatuses": [container]},
    }


@pytest.mark.extended(keep=3, of="a command as a process")
def test_the_process_becomes_kubectl_with_the_same_cluster(tmp_path: Path) -> None:
    stand_in = tmp_path / "kubectl"
    stand_in.write_text('#!/bin/sh\nprintf "%s|" "$@"\nexit 7\n')
    stand_in.chmod(0o755)
    listed = {"kind": "PodList", "metadata": {}, "items": [a_pod(0), a_pod(1)]}
    job = a_manifest(status=a_running_status())
    with api_server(tmp_path, {JOB: (200, job), PODS: (200, listed)}) as (config, _):
        words = ("shell", "llama", "--rank", "8", "--kubeconfig", str(config), "--", "nvidia-smi")
        done = drumline(*words, environment={"PATH": str(tmp_path)})
        absent = drumline(*words, environment={"PATH": "/nowhere"})
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout.split("|")[:-1] == [
        "--namespace=team",
        f"--kubeconfig={config}",
        *shell_arguments("llama-1-g1", ["nvidia-smi"], terminal=False),
    ]
    assert absent.returncode == 1
    assert "kubectl is not in the PATH" in absent.stderr


def kubectl_words(folder: Path, job: Any, *words: str) -> list[str]:
    """What kubectl would be asked behind the options of the cluster."""
    stand_in = folder / "kubectl"
    stand_in.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    stand_in.chmod(0o755)
    listed = {"kind": "PodList", "metadata": {}, "items": [a_pod(0)]}
    with api_server(folder, {JOB: (200, job), PODS: (200, listed)}) as (config, _):
        done = drumline(
            *("shell", "llama", "--kubeconfig", str(config)),
            *words,
            environment={"PATH": str(folder)},
        )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("|")[2:-1]


@pytest.mark.extended(keep=3, of="a command as a process")
def test_a_job_that_is_a_shell_is_entered_by_its_own_terminal(tmp_path: Path) -> None:
    job = a_manifest(status=a_running_status())
    job["spec"] = {**job["spec"], "template": {"image": "any:1", "tty": True}}
    attached = attach_arguments("llama-0-g1", terminal=False)
    assert kubectl_words(tmp_path, job) == attached
    assert attach_arguments("p", terminal=True)[1:3] == ["-i", "-t"]
    beside = shell_arguments("llama-0-g1", ["nvidia-smi"], terminal=False)
    assert kubectl_words(tmp_path, job, "--", "nvidia-smi") == beside


@pytest.mark.extended(keep=3, of="a command as a process")
@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Suspended"])
def test_a_shell_that_has_ended_has_no_terminal(tmp_path: Path, phase: str) -> None:
    job = a_manifest(status={**a_running_status(), "phase": phase})
    job["spec"] = {**job["spec"], "template": {"image": "any:1", "tty": True}}
    listed = {"kind": "PodList", "metadata": {}, "items": []}
    with api_server(tmp_path, {JOB: (200, job), PODS: (200, listed)}) as (config, _):
        done = drumline("shell", "llama", "--kubeconfig", str(config))
    assert (done.returncode, "llama has no terminal" in done.stderr) == (1, True)


def test_a_file_of_a_pod_keeps_its_name_in_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # `kubectl cp pod:/tmp/trace.json .` ends with: open .: is a directory
    assert copy_arguments("p", copy_of("llama:/tmp/trace.json", "."))[-1] == "trace.json"
    (tmp_path / "runs").mkdir()
    assert copy_arguments("p", copy_of("llama:/ckpt/", "runs"))[-1] == "runs/ckpt"
    assert copy_arguments("p", copy_of("llama:/tmp/a", "b"))[-1] == "b"


def test_a_path_that_the_pod_lacks_is_an_error_before_kubectl_copies_nothing(
    tmp_path: Path,
) -> None:
    stand_in = tmp_path / "kubectl"
    stand_in.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        '  *"test -e /there"*) exit 0;;\n'
        '  *"test -e"*) echo "command terminated with exit code 1" >&2; exit 1;;\n'
        "esac\n"
        "echo copied\n"
    )
    stand_in.chmod(0o755)
    listed = {"kind": "PodList", "metadata": {}, "items": [a_pod(0)]}
    job = a_manifest(status=a_running_status())
    with api_server(tmp_path, {JOB: (200, job), PODS: (200, listed)}) as (config, _):
        there, missing = (
            drumline(
                *("cp", f"llama:/{name}", str(tmp_path), "--kubeconfig", str(config)),
                environment={"PATH": str(tmp_path)},
            )
            for name in ("there", "missing")
        )
    assert (there.returncode, there.stdout) == (0, "copied\n")
    said = "drumline: llama:/missing does not exist in pod llama-0-g1\n"
    assert (missing.returncode, missing.stdout, missing.stderr) == (1, "", said)
