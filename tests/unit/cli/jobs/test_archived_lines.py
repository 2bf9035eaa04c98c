"""Lines of pods that are gone, as the archive kept them at incidents."""

from __future__ import annotations

from drumline_cli.jobs.archived_lines import archived_lines

FIRST = b"""==> llama-0-g1 on node-a <==
2026-11-23T12:00:01Z step 10
2026-11-23T12:00:03Z [rank 3] ==> llama-9-g1 on b <==

==> llama-1-g1 on no node <==
2026-11-23T12:00:02Z step 10
"""
SECOND = b"""lost
==> llama-0-g1 on node-a <==
2026-11-23T12:00:03Z [rank 3] ==> llama-9-g1 on b <==
2026-11-23T12:00:04Z step 20
"""


def test_the_lines_of_all_pods_are_by_time_and_once() -> None:
    assert [line.shown for line in archived_lines([FIRST, SECOND])] == [
        "[0] step 10",
        "[1] step 10",
        "[0] [rank 3] ==> llama-9-g1 on b <==",
        "[0] step 20",
    ]


def test_a_pod_that_could_not_be_read_says_so() -> None:
    (line,) = archived_lines([b"==> llama-0-g1 on a <==\n(not read: timed out)\n"])
    assert line.shown == "[0] (not read: timed out)"
