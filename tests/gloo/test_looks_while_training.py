"""A run that continues prompts and exports its checkpoints while it trains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drumline_agent.rank_protocol.messages import PromptsContinued, parse_rank_message
from drumline_contract import plain
from drumline_contract.prompt_answers import decode
from drumline_trainer.checkpoint.named import named_checkpoint
from drumline_trainer.data.codec import codec_of
from drumline_trainer.generate import Sampling, answer
from drumline_trainer.models.hugging_face import import_hugging_face
from drumline_trainer.recovery.background_exports import BackgroundExports
from tests.gloo.gang import GangStarter
from tests.gloo.jobs import train_rank
from tests.gloo.stored import whole_tensors
from tests.gloo.tuned import tuned, write_conversations, write_tiny_llama

PROMPT = "How many are two and two?"


@pytest.mark.extended(keep=4, of="runs of ranks")
def test_prompts_are_continued_and_checkpoints_exported(gangs: GangStarter, tmp_path: Path) -> None:
    config = tuned(
        write_tiny_llama(tmp_path / "model"),
        write_conversations(tmp_path / "data"),
        steps=4,
        evaluation={"every_steps": 2, "prompts": f"{PROMPT}\n\nAnd then?\n", "prompt_tokens": 6},
        checkpoint={"every_steps": 2, "export_every_steps": 2},
    )
    run = tmp_path / "run"
    sent = gangs.run(train_rank, config, None, world_size=2, checkpoint_folder=run)

    lines = (run / "metrics" / "evaluations.jsonl").read_text().splitlines()
    shown = {each["step"]: each["answers"] for each in map(json.loads, lines)}
    assert list(shown) == [0, 2, 4]
    assert [each["prompt"] for each in shown[4]] == [PROMPT, "And then?"]
    files, codec = named_checkpoint(str(run)), codec_of(config, chat=True)
    expected = answer(files, config, PROMPT, codec=codec, sampling=Sampling(tokens=6))
    assert shown[4][0]["answer"] == expected
    messages = [[line for line in rank if line.startswith('{"continued"')] for rank in sent]
    assert [len(rank) for rank in messages] == [3, 0]
    reported = parse_rank_message(messages[0][-1])
    assert isinstance(reported, PromptsContinued)
    assert decode(reported.answers).pairs == tuple(
        (plain(each["prompt"]), plain(each["answer"])) for each in shown[4]
    )

    exported = sorted(path.name for path in (run / "exports").iterdir() if path.is_dir())
    assert exported == ["step-00000004"]
    kept = whole_tensors(run / "step-00000004")
    _, weights = import_hugging_face(run / "exports" / "step-00000004")
    for name, weight in weights:
        assert weight.numpy().tobytes() == kept[f"model.{name}"].tobytes()


@pytest.mark.extended
def test_an_export_that_fails_is_reported_and_ends_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    exports = BackgroundExports(
        every_steps=2,
        keep=1,
        dtype="float32",
        folder=tmp_path,
        last_step=4,
        print_line=said.append,
    )
    exports.committed(2, lambda: None)
    exports.committed(3, lambda: None)
    exports.finish(lambda: None)
    assert [line.startswith("the export of step 2 failed") for line in said] == [True]
    assert not [path for path in (tmp_path / "exports").iterdir() if path.is_dir()]
