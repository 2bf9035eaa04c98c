"""An export in lm-eval: it loads the folder as it is, and scores a task as our model does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

lm_eval = pytest.importorskip("lm_eval", reason="make test-all WHAT=libraries")
datasets = pytest.importorskip("datasets")

from lm_eval.models.huggingface import HFLM  # noqa: E402

from drumline_trainer.models.build import build_on_meta  # noqa: E402
from drumline_trainer.models.hugging_face import import_hugging_face  # noqa: E402
from tests.gloo.tuned import write_tiny_llama  # noqa: E402
from tests.unit.trainer.data.records.conversations import CAPITALS  # noqa: E402

QUESTIONS = [
    {"asked": f"The capital of {name} is", "answers": [f" {right}.", f" {wrong}."], "right": 0}
    for name, right, wrong in zip(
        CAPITALS, CAPITALS.values(), [*list(CAPITALS.values())[1:], "Paris"], strict=True
    )
]
TASK = {
    "task": "capitals",
    "custom_dataset": lambda **_: {"test": datasets.Dataset.from_list(QUESTIONS)},
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{asked}}",
    "doc_to_choice": "{{answers}}",
    "doc_to_target": "right",
    "target_delimiter": "",
    "metric_list": [{"metric": "acc"}],
}


def likelihoods(folder: Path) -> list[list[float]]:
    """Of each answer, by our own model with the weights of the folder."""
    config, weights = import_hugging_face(folder)
    model = build_on_meta(config)
    model.load_state_dict(dict(weights), assign=True)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def of(asked: str, answer: str) -> float:
        begin = len(tokenizer.encode(asked).ids)
        tokens = torch.tensor([tokenizer.encode(asked + answer).ids])
        with torch.no_grad():
            logs = model(tokens[:, :-1]).log_softmax(-1)
        each = logs.gather(-1, tokens[:, 1:, None])[0, begin - 1 :]
        return float(each.sum())

    return [[of(each["asked"], answer) for answer in each["answers"]] for each in QUESTIONS]


def test_a_task_has_the_likelihoods_of_our_model(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "model")
    scored: Any = lm_eval.simple_evaluate(
        HFLM(pretrained=str(folder), device="cpu", dtype="float32", batch_size=4),
        tasks=[TASK],
        bootstrap_iters=0,
    )
    theirs = [
        [float(likelihood) for likelihood, _ in each["filtered_resps"]]
        for each in scored["samples"]["capitals"]
    ]
    ours = likelihoods(folder)
    torch.testing.assert_close(torch.tensor(theirs), torch.tensor(ours), rtol=1e-4, atol=1e-4)
    chosen = sum(right > wrong for right, wrong in ours) / len(ours)
    assert scored["results"]["capitals"]["acc,none"] == pytest.approx(chosen)
