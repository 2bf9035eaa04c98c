"""Foreign text is made safe where it enters."""

from __future__ import annotations

import pytest

from drumline_contract import plain, plain_lines


@pytest.mark.parametrize(
    ("foreign", "text"),
    [
        ("two\nlines\tand  spaces ", "two lines and spaces"),
        ("\x1b]0;title\x07\x1b[31mred", "]0;title [31mred"),
        ("a\u202eb\u2028c\u200bd", "a b c d"),
        ("Grüße, 日本語", "Grüße, 日本語"),
    ],
)
def test_foreign_text_becomes_a_line_that_steers_nothing(foreign: str, text: str) -> None:
    assert plain(foreign) == text


@pytest.mark.parametrize(
    ("foreign", "text"),
    [
        ('Traceback:\n  File "a", line 1\n', 'Traceback:\n  File "a", line 1\n'),
        ("\x1b[31mred\r\n\u202egnp.exe", " [31mred \n gnp.exe"),
    ],
)
def test_lines_stay_lines(foreign: str, text: str) -> None:
    assert plain_lines(foreign) == text
