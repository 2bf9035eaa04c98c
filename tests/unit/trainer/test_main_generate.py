from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from drumline_contract import ExitCode
from drumline_contract.config import ModelConfig, TrainerConfig
from drumline_trainer.__main__ import main
from drumline_trainer.checkpoint.named import named_checkpoint
from drumline_trainer.data.codec import Codec, codec_of
from drumline_trainer.generate import Sampling, answer
from tests.unit.trainer.data.records.conversations import write_chat_model
from tests.unit.trainer.test_main_export import CONFIG, stored


def said(folder: Path, capsys: pytest.CaptureFixture[str], *more: str, prompt: str = "def ") -> str:
    assert main(["generate", str(folder), prompt, "--tokens", "12", *more]) == ExitCode.OK
    return capsys.readouterr().out


def test_the_likeliest_tokens_are_those_that_transformers_finds(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - seconds

    stored(tmp_path / "step-3")
    assert main(["export", str(tmp_path / "step-3"), str(tmp_path / "out")]) == ExitCode.OK
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    prompt = torch.tensor([list(b"def ")])
    whole = theirs.generate(prompt, max_new_tokens=12, min_new_tokens=12, do_sample=False)
    numbers = Codec(
        encode=lambda text: list(text.encode()), decode=lambda tokens: str(list(tokens))
    )
    ours = answer(
        named_checkpoint(str(tmp_path / "step-3")),
        CONFIG,
        "def ",
        codec=numbers,
        sampling=Sampling(tokens=12),
    )
    assert ours == str(whole[0, 4:].tolist())


def test_samples_are_those_of_the_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored(tmp_path / "step-3")
    likeliest = said(tmp_path / "step-3", capsys)
    drawn = [
        said(tmp_path / "step-3", capsys, "--temperature", "2", "--set", f"seed={seed}")
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1]
    assert len({likeliest, *drawn}) == 3


def test_a_prompt_is_written_by_the_chat_template_and_its_end_ends_the_answer(
    tmp_path: Path,
) -> None:
    folder = write_chat_model(tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    config = TrainerConfig(model=ModelConfig(vocab_size=320), model_from=str(folder))
    codec = codec_of(config, chat=True)
    plain = codec_of(config, chat=False)
    asked = "<|begin|><|user|>Where is Rome?<|end|>\n<|assistant|>"
    assert codec.encode("Where is Rome?") == plain.encode(asked)
    assert codec.stops == {1, 2, plain.encode("<|end|>")[0]}
    assert codec.decode(codec.encode("Where is Rome?")).strip().startswith("Where is Rome?")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--chat"], "has no tokenizer, and so no chat template"),
        (["--tokens", "0"], "--tokens: must be at least 1"),
        (["--temperature", "-1"], "--temperature: must not be negative"),
        (["--set", "model.rope_theta=5.0"], "model.rope_theta is 10000.0 there and 5.0 here"),
    ],
)
def test_what_cannot_work_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], words: str
) -> None:
    stored(tmp_path / "step-3")
    assert main(["generate", str(tmp_path / "step-3"), "a", *more]) == ExitCode.CONFIG
    assert words in capsys.readouterr().err
