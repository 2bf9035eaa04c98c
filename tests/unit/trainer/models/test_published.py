"""What publishers write into config.json and adapter_config.json means here what it means there.

published.jsonl has a file a line, as published: of the first authors, of mirrors and fine-tunes,
and such as several libraries save them. `refused` is a word of the reason where ours cannot be it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from drumline_contract.shapes.hugging_face import HuggingFaceError, to_ours, to_theirs
from drumline_contract.shapes.hugging_face.folder import language_part
from drumline_contract.shapes.hugging_face.kinds import KINDS
from drumline_trainer.adapters.peft import check_plain

LINES = [
    json.loads(line)
    for line in Path(__file__).with_name("published.jsonl").read_text().splitlines()
]


def checked(line: dict[str, Any]) -> str:
    """Why it is refused, or nothing."""
    try:
        if line["file"] == "config.json":
            to_ours(language_part(line["values"]))
        else:
            check_plain(line["values"], folder=Path("there"))
    except HuggingFaceError as error:
        return str(error)
    return ""


def test_a_published_file_is_taken_or_refused_with_the_key() -> None:
    assert len({line["name"] for line in LINES}) == len(LINES) > 80
    reasons = {line["name"]: checked(line) for line in LINES}
    expected = {line["name"]: line.get("refused", "") for line in LINES}
    wrong = {
        name: reasons[name]
        for name, word in expected.items()
        if word not in reasons[name] or bool(word) is not bool(reasons[name])
    }
    assert not wrong


def test_a_published_model_goes_back_as_it_came() -> None:
    for line in LINES:
        if line["file"] == "config.json" and "refused" not in line:
            inside = language_part(line["values"])
            model = to_ours(inside)
            assert to_ours(to_theirs(model, dtype="bfloat16", like=inside)) == model, line["name"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.model_type)
def test_every_default_of_transformers_means_that_nothing_is_changed(kind: Any) -> None:
    """A key that its own library writes at its default, under any name, is none that is unknown."""
    line = {"file": "config.json", "values": AutoConfig.for_model(kind.model_type).to_dict()}
    assert "is not known to have here" not in checked(line)


@pytest.mark.parametrize(
    ("model_type", "key", "agrees", "differs"),
    [
        ("llama", "use_qk_norm", False, True),
        ("qwen3", "use_qk_norm", True, False),
        ("qwen2", "qkv_bias", True, False),
        ("mistral", "attention_bias", False, True),
        ("llama", "rope_interleaved", False, True),
        ("qwen2", "use_mrope", False, True),
        ("llama", "residual_multiplier", 1.0, 0.2),
        ("llama", "final_logit_softcapping", None, 30.0),
        ("llama", "num_experts", 0, 8),
        ("llama", "activation", "swiglu", "gelu"),
        ("mixtral", "norm_topk_prob", True, False),
        ("llama", "pruned_heads", {}, {"0": [1]}),
        ("llama", "rope_ratio", 1, 2.0),
    ],
)
def test_a_key_counts_where_it_says_another_model(
    model_type: str, key: str, agrees: Any, differs: Any
) -> None:
    described = AutoConfig.for_model(model_type).to_dict()
    assert to_ours({**described, key: agrees}) == to_ours(described)
    with pytest.raises(HuggingFaceError, match=f"'{key}' is .*not known to have here"):
        to_ours({**described, key: differs})
