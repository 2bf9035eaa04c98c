from __future__ import annotations

import pytest

from drumline_agent.base.exit_codes import describe_exit_code, pod_exit_code


@pytest.mark.parametrize(
    ("code", "words", "pod"),
    [
        (0, "exit code 0 (OK)", 0),
        (65, "exit code 65 (CORRUPT_CHECKPOINT)", 65),
        (3, "exit code 3", 3),
        (-9, "killed by SIGKILL", 137),
        (-63, "killed by signal 63", 191),
    ],
)
def test_an_exit_code_in_words_and_as_a_pod_shows_it(code: int, words: str, pod: int) -> None:
    assert (describe_exit_code(code), pod_exit_code(code)) == (words, pod)
