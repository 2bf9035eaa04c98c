"""`drumline convert` as it is called: files in, jobs out, notes beside them, bounds."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from drumline_cli.program import main
from tests.texts import missing

POD = """
    template:
      spec:
        containers:
          - {image: "registry.example.com/a:1", resources: {limits: {nvidia.com/gpu: 1}}}
"""


def job(name: str, *, nodes: str = "1") -> str:
    return f"""
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {{name: {name}}}
spec:
  tasks:
  - replicas: {nodes}{POD}"""


def written(folder: Path, text: str) -> str:
    file = folder / "jobs.yaml"
    file.write_text(text)
    return str(file)


def test_each_document_is_a_job_and_other_kinds_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service = "apiVersion: v1\nkind: Service\nmetadata: {name: s}\n"
    file = written(tmp_path, "---\n".join([job("a"), service, job("b")]))
    assert main(["convert", file, "-q", "research", "--quiet"]) == 0
    printed = capsys.readouterr()
    jobs = list(yaml.safe_load_all(printed.out))
    assert [each["metadata"]["name"] for each in jobs] == ["a", "b"]
    assert {each["spec"]["queue"] for each in jobs} == {"research"}
    assert not missing(printed.err, "document 2")
    assert "carried over" not in printed.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (job("a") + "---" + job("b", nodes="x"), "line 18: spec.tasks[0].replicas"),
        ("kind: Service\n", "nothing to convert"),
        ("[" * 49, "48 levels"),
        ("a: &a [1]\n" + "".join(f"b{n}: 1\n" for n in range(60_000)), "100000 values"),
        ("#" * 1_000_001, "longer than"),
        (
            "kind: Job\na: &a [1,1,1,1,1,1,1,1,1]\n"
            + "".join(
                f"{name}: &{name} [{','.join([f'*{last}'] * 9)}]\n"
                for last, name in zip("abcdefgh", "bcdefghi", strict=True)
            ),
            "aliases unfold",
        ),
        ("kind: Job\na: &a [*a]\n", "contains itself"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    file = written(tmp_path, text)
    assert main(["convert", file, "-q", "q"]) == 2
    error = capsys.readouterr().err
    assert file in error
    assert said in error
