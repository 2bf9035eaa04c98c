"""What `make test-all WHAT=libraries` installs: requirements.in resolved, beside the lock."""

from __future__ import annotations

from tests.libraries.lock import HERE, LOCK, brought, requirements


def names(text: str) -> set[str]:
    return {name for name, _ in requirements(text)}


def test_what_is_asked_for_is_resolved_and_nothing_twice() -> None:
    resolved = (HERE / "requirements.txt").read_text()
    locked = brought(LOCK.read_text())
    assert names((HERE / "requirements.in").read_text()) <= names(resolved) | locked
    assert not names(resolved) & locked, "make lock"
    assert all("--hash=sha256:" in lines for _, lines in requirements(resolved))


def test_a_requirement_is_its_name_and_all_of_its_lines() -> None:
    text = "# of nobody\nA.b_c==1 ; x \\\n    --hash=sha256:1\n# via a\nd==2\n"
    assert list(requirements(text)) == [
        ("a-b-c", "A.b_c==1 ; x \\\n    --hash=sha256:1\n# via a\n"),
        ("d", "d==2\n"),
    ]


def test_what_another_platform_alone_installs_is_not_brought_along() -> None:
    text = (
        "a==1 ; sys_platform == 'nowhere' \\\n    --hash=sha256:1\nb==2 \\\n    --hash=sha256:2\n"
    )
    assert brought(text) == {"b"}
