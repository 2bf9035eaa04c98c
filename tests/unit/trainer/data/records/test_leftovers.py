from __future__ import annotations

import json
from pathlib import Path

import pytest

from drumline_trainer.data.records.leftovers import leftovers

CACHE = "cache-1f2e3d4c5b6a7980.arrow"
ROWS = ("data-00000-of-00001.arrow", "data-00001-of-00002.arrow")


def listing(*names: str) -> str:
    return json.dumps({"_data_files": [{"filename": name} for name in names]})


@pytest.mark.parametrize(
    ("state", "names", "left"),
    [
        (None, [ROWS[0], CACHE], {CACHE}),
        (None, ["x-train.arrow", "cache-1f2e3d4c5b6a7980_00001_of_00004.arrow"], {"cache-"}),
        (listing(ROWS[0]), [*ROWS, CACHE], {ROWS[1], CACHE}),
        (listing(*ROWS), [*ROWS], set()),
        (listing(CACHE), [CACHE, *ROWS], {*ROWS}),
        (listing(ROWS[0]), [ROWS[1]], set()),
        (listing(ROWS[0]), [ROWS[0], "a.jsonl"], set()),
        (None, [CACHE], set()),
        (None, ["cache-of-mine.arrow", ROWS[0]], set()),
        *((odd, [*ROWS], set()) for odd in ("{}", "[]", '{"_data_files": [1]}', "{", "[" * 9999)),
    ],
)
def test_files_that_hold_no_rows_of_the_data_set(
    tmp_path: Path, state: str | None, names: list[str], left: set[str]
) -> None:
    (tmp_path / "train").mkdir()
    if state is not None:
        (tmp_path / "train" / "state.json").write_text(state)
    there = [f"train/{name}" for name in names]
    expected = {name for name in there if name.startswith(tuple(f"train/{each}" for each in left))}
    assert leftovers(tmp_path, there) == expected
    elsewhere = f"test/{CACHE}"
    assert leftovers(tmp_path, [*there, elsewhere]) == expected
