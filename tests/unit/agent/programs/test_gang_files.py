from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from drumline_agent.programs import gang_files
from drumline_contract import GenerationRecord, Member


def member(index: int, address: str) -> Member:
    return Member(
        index=index, pod_uid=f"uid-{index}", address=address, host=f"job-{index}", ranks=2
    )


def test_the_pod_resolves_itself_by_its_own_name_too() -> None:
    record = GenerationRecord(
        job_uid="uid",
        generation=1,
        epoch=1,
        members=(member(0, "10.0.0.1"), member(1, "fd00::2")),
    )

    files = gang_files.render(record, own_index=1, own_name="job-1-g1")

    assert files["hosts"].endswith("10.0.0.1\tjob-0\nfd00::2\tjob-1 job-1-g1\n")
    assert files["hostfile"] == "job-0 slots=2\njob-1 slots=2\n"


def test_pods_of_roles_have_their_names_and_no_line_in_the_host_file() -> None:
    launcher = replace(member(1, "10.0.0.2"), ranks=0, alias="launcher-0")
    server = replace(member(2, "10.0.0.3"), ranks=0, alias="ps-0")
    record = GenerationRecord(
        job_uid="uid",
        generation=1,
        epoch=1,
        members=(member(0, "10.0.0.1"), launcher),
        companions=(server,),
    )
    known = GenerationRecord.parse(record.encode())
    files = gang_files.render(known, own_index=0, own_name="job-0")
    assert files["hosts"].endswith(
        "10.0.0.1\tjob-0\n10.0.0.2\tjob-1 launcher-0\n10.0.0.3\tjob-2 ps-0\n"
    )
    assert files["hostfile"] == "job-0 slots=2\n"
    assert (known.world_size, known.store_member.index) == (2, 0)


def test_files_appear_whole_and_readable_by_any_user(tmp_path: Path) -> None:
    folder = tmp_path / "gang"
    gang_files.write(folder, {"hosts": "old"})
    before = (folder / "hosts").stat().st_ino
    gang_files.write(folder, {"hosts": "new"})

    assert [path.name for path in folder.iterdir()] == ["hosts"]
    assert (folder / "hosts").read_text() == "new"
    assert (folder / "hosts").stat().st_mode & 0o777 == 0o644
    assert (folder / "hosts").stat().st_ino != before, "replaced, not rewritten in place"
