import pytest

from drumline.lifecycle.model.wording import counted


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 members"), (1, "1 member"), (2, "2 members"), (11, "11 members")]
)
def test_a_noun_is_in_the_plural_unless_the_count_is_1(count: int, text: str) -> None:
    assert counted(count, "member") == text
