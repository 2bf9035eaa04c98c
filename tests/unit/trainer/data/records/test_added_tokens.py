"""Tokens that the files beside a tokenizer.json add to it, as transformers adds them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from drumline_contract.config import ConfigError
from drumline_trainer.data.records.template_files import special_tokens_of, stop_numbers_of
from tests.unit.trainer.data.records.test_shapes import library_of, tokens_of
from tests.unit.trainer.data.records.test_tokens import read, read_file
from tests.unit.trainer.data.records.tokenizers_by_shape import write_tokenizer

TEXT = "The others, he <tool> there"
STRIPPING = {
    "__type": "AddedToken",
    "content": "he",
    "lstrip": True,
    "rstrip": False,
    "normalized": False,
    "single_word": False,
}


def compared(model: Path) -> list[int]:
    """The tokens of a text, which are those of transformers."""
    library = library_of(model)
    [ours] = tokens_of(read(model, [{"text": TEXT}]))
    assert ours == [*library(TEXT).input_ids, library.eos_token_id]
    return ours


@pytest.mark.parametrize(
    "named",
    [
        {"additional_special_tokens": ["he"]},
        {"extra_special_tokens": ["he"]},
        {"additional_special_tokens": ["he"], "extra_special_tokens": {"a": "Qu"}},
        {"model_specific_special_tokens": {"call_token": "he"}},
        {"additional_special_tokens": [STRIPPING]},
        {"mask_token": STRIPPING},
    ],
)
def test_a_special_token_of_any_key_is_one_token(tmp_path: Path, named: dict[str, Any]) -> None:
    plain = compared(write_tokenizer(tmp_path / "plain"))
    assert compared(write_tokenizer(tmp_path / "named", **named)) != plain


def test_a_list_of_the_older_file_counts_where_the_newer_one_lists_no_tokens(
    tmp_path: Path,
) -> None:
    listed = json.dumps({"additional_special_tokens": ["he"]})
    made: list[list[int]] = []
    for name, config in (("older", {}), ("newer", {"added_tokens_decoder": {}})):
        folder = write_tokenizer(tmp_path / name, **config)
        (folder / "special_tokens_map.json").write_text(listed)
        made.append(compared(folder))
    assert made[0] != made[1]


def test_tokens_of_the_older_file_are_added(tmp_path: Path) -> None:
    model = write_tokenizer(tmp_path)
    plain = compared(model)
    size = Tokenizer.from_file(str(model / "tokenizer.json")).get_vocab_size()
    (model / "added_tokens.json").write_text(json.dumps({"<tool>": size, "</s>": 1}))
    assert size in compared(model)
    (model / "added_tokens.json").write_text(json.dumps({"<tool>": size + 5}))
    [ours] = tokens_of(read(model, [{"text": TEXT}]))
    assert ours == plain  # no model has learned a number after a gap
    write_tokenizer(model, added_tokens_decoder={})
    (model / "added_tokens.json").write_text(json.dumps({"<tool>": size}))
    assert compared(model) == plain


def test_a_template_has_the_tokens_that_transformers_5_writes(tmp_path: Path) -> None:
    model = write_tokenizer(tmp_path, model_specific_special_tokens={"call_token": "he"})
    assert "he" in special_tokens_of(model).values()


def test_a_token_beyond_the_model_counts_only_where_a_text_has_it(tmp_path: Path) -> None:
    model = write_tokenizer(tmp_path)
    size = Tokenizer.from_file(str(model / "tokenizer.json")).get_vocab_size()
    (model / "added_tokens.json").write_text(json.dumps({"<tool>": size}))
    assert read(model, [{"text": "The others"}]).vocabulary <= size
    assert read(model, [{"text": TEXT}]).vocabulary == size + 1
    (model / "tokenizer_config.json").write_text("{}")  # no end token, so such pairs have none
    assert read(model, [{"prompt": "", "chosen": "", "rejected": ""}]).vocabulary == 0


def test_half_of_a_surrogate_pair_in_a_token_is_refused(tmp_path: Path) -> None:
    model = write_tokenizer(tmp_path, bos_token="\ud800")  # noqa: S106 - a token of text
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json.*surrogates not allowed"):
        read(model, [{"text": TEXT}])


@pytest.mark.parametrize("number", [-1, 1 << 40, True, "1", None])
def test_a_stop_that_is_no_number_of_a_token_is_none(tmp_path: Path, number: Any) -> None:
    model = write_tokenizer(tmp_path)
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [number, 3]}))
    assert stop_numbers_of(model) == (3,)
    assert tokens_of(read(model, [{"text": TEXT}])) == [compared(model)]


def test_merges_are_not_left_out_at_random(tmp_path: Path) -> None:
    """So that all ranks have the same tokens."""
    model = write_tokenizer(tmp_path)
    [expected] = tokens_of(read(model, [{"text": TEXT}]))
    stored = json.loads((model / "tokenizer.json").read_text())
    stored["model"]["dropout"] = 0.9
    (model / "tokenizer.json").write_text(json.dumps(stored))
    [ours] = tokens_of(read(model, [{"text": TEXT}]))
    assert ours == expected


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "list.json"])
def test_a_byte_order_mark_before_the_first_record_is_no_part_of_it(
    tmp_path: Path, name: str
) -> None:
    model = write_tokenizer(tmp_path / "model")
    records = [{"prompt": "Two?", "completion": " four"}, {"prompt": "He?", "completion": " No"}]
    expected = tokens_of(read(model, records))
    lines = "".join(f"{json.dumps(record)}\n" for record in records)
    content = json.dumps(records) if name == "list.json" else lines
    source = tmp_path / "data" / name
    source.parent.mkdir()
    source.write_bytes(content.encode("utf-8-sig"))
    assert tokens_of(read_file(source, model)) == expected
    source.write_bytes(json.dumps({"data": records}, indent=1).encode("utf-8-sig"))
    with pytest.raises(ConfigError):
        read_file(source, model)


@pytest.mark.parametrize("name", ["images", "audio", "input_ids", "system_prompt"])
def test_a_field_that_is_not_read_is_said(tmp_path: Path, name: str) -> None:
    model = write_tokenizer(tmp_path)
    record = {"text": "Two and two are four.", name: [1, 2]}
    assert read(model, [record, record]).notes == (
        f"data: 2 records have {name!r}, which is not read",
    )
    assert read(model, [{**record, name: []}]).notes == ()
