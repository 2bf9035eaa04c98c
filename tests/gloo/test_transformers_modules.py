"""Modules of transformers in the training loop: the plain loop's losses, recovery, export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModelForCausalLM

from drumline_agent.rank_protocol.heartbeat import Phase
from drumline_contract import ExitCode
from drumline_contract.config import TrainerConfig
from drumline_contract.shapes.hugging_face import with_model_of_folder
from drumline_trainer.checkpoint.named import named_checkpoint
from drumline_trainer.data.run_data import open_run_data
from drumline_trainer.export import export_checkpoint
from drumline_trainer.metrics.losses import read_losses
from drumline_trainer.optimization.learning_rate import learning_rate
from tests.gloo.configs import SMALL, write_text
from tests.gloo.gang import GangStarter
from tests.gloo.jobs import train_rank, train_until
from tests.gloo.standin import Fault, StandIn
from tests.gloo.stored import same_bits, trainer_state, whole_tensors

pytestmark = pytest.mark.extended(keep=4, of="runs of ranks")

LLAMA = {
    "model_type": "llama",
    "vocab_size": 258,
    "hidden_size": 16,
    "intermediate_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
MIXTURE = {  # its files have names for each expert, its module has one tensor for all
    **LLAMA,
    "model_type": "qwen3_moe",
    "tie_word_embeddings": False,
    "head_dim": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
}
BIASED = {  # the biases of its router are a buffer that is stored
    **LLAMA,
    "model_type": "deepseek_v3",
    "num_key_value_heads": 2,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 20,
    "first_k_dense_replace": 1,
    "tie_word_embeddings": False,
}
STATES = {
    "model_type": "mamba",
    "vocab_size": 258,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "state_size": 4,
    "pad_token_id": 0,
}


def described(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def run_of(folder: Path, model: dict[str, Any] = LLAMA, **changes: Any) -> TrainerConfig:
    raw = {
        **{name: value for name, value in SMALL.items() if name != "model"},
        "model": {"family": "transformers"},
        "config_from": str(described(folder / "described", model)),
        "data": {"source": str(write_text(folder / "text")), "sequence_length": 16},
        "optimizer": {"warmup_steps": 2, "weight_decay": 0.0, "epsilon": 1e-4},
        "checkpoint": {"every_steps": 4, "keep": 2, "snapshot_every_steps": 1},
        "steps": 10,
        **changes,
    }
    return TrainerConfig.from_dict(with_model_of_folder(raw))


def plain_losses(config: TrainerConfig) -> dict[int, float]:
    """A loop of transformers and torch, with the same samples, rule and rate."""
    data, rule = open_run_data(config).training, config.optimizer
    folder = config.model_from or config.config_from
    torch.manual_seed(config.seed)
    model = (
        AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
        if config.model_from is None
        else AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=(rule.beta1, rule.beta2), eps=rule.epsilon, weight_decay=0.0
    )
    losses: dict[int, float] = {}
    size = config.global_batch_size
    for step in range(config.steps):
        batch = data.batch(range(step * size, (step + 1) * size))
        inputs, targets = torch.from_numpy(batch.inputs), torch.from_numpy(batch.targets)
        logits = model(input_ids=inputs, use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        if rule.max_gradient_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), rule.max_gradient_norm)
        optimizer.param_groups[0]["lr"] = learning_rate(step, config)
        optimizer.step()
        losses[step + 1] = float(loss.detach())
    return losses


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("model", [LLAMA, MIXTURE, BIASED], ids=lambda each: each["model_type"])
def test_losses_are_those_of_a_plain_loop(
    gangs: GangStarter, tmp_path: Path, model: dict[str, Any], ranks: int
) -> None:
    config = run_of(tmp_path, model, steps=3)
    gangs.run(train_rank, config, None, world_size=ranks, checkpoint_folder=tmp_path / "run")
    losses = read_losses(tmp_path / "run" / "metrics.jsonl")
    assert losses == pytest.approx(plain_losses(config), rel=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"parallelism": {"data_parallel": "ddp"}},
        {"parallelism": {"data_parallel": "zero2"}},
        {"micro_batch_size": 1},
        {"memory": {"recompute": "full"}},
        {"memory": {"recompute": "selective"}},
    ],
    ids=str,
)
def test_other_layouts_have_the_same_losses(
    gangs: GangStarter, tmp_path: Path, settings: dict[str, Any]
) -> None:
    config = run_of(tmp_path, steps=3, **settings)
    gangs.run(train_rank, config, None, world_size=2, checkpoint_folder=tmp_path / "run")
    losses = read_losses(tmp_path / "run" / "metrics.jsonl")
    assert losses == pytest.approx(plain_losses(config), rel=1e-5)


@pytest.mark.parametrize("model", [LLAMA, BIASED], ids=lambda each: each["model_type"])
def test_killed_and_resumed_equals_undisturbed_bitwise(
    gangs: GangStarter, tmp_path: Path, model: dict[str, Any]
) -> None:
    config = run_of(tmp_path, {**model, "attention_dropout": 0.1})
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    gangs.run(train_rank, config, None, world_size=2, checkpoint_folder=whole)
    with gangs.gang(
        train_until, config, 6, Phase.BACKWARD, world_size=2, checkpoint_folder=killed
    ) as gang:
        assert gang.results() == ["reached"] * 2
        gang.kill()
    gangs.run(train_rank, config, None, world_size=2, checkpoint_folder=killed)
    last = "step-00000010"
    assert same_bits(whole_tensors(killed / last), whole_tensors(whole / last))
    assert trainer_state(killed / last) == trainer_state(whole / last)


def test_a_killed_rank_costs_nothing_but_time(gangs: GangStarter, tmp_path: Path) -> None:
    config = run_of(tmp_path, {**LLAMA, "attention_dropout": 0.1})
    whole, folder = tmp_path / "whole", tmp_path / "run"
    gangs.run(train_rank, config, None, world_size=2, checkpoint_folder=whole)
    with StandIn(gangs, config, world_size=2, folder=folder) as gang:
        gang.start([Fault(kind="SIGKILL", rank=1, step=6, phase=Phase.BACKWARD)])
        survivor = gang.pids[0]
        assert gang.recover() == {1}
        gang.finish()
        assert gang.pids[0] == survivor
    last = "step-00000010"
    assert read_losses(folder / "metrics.jsonl") == read_losses(whole / "metrics.jsonl")
    assert same_bits(whole_tensors(folder / last), whole_tensors(whole / last))


@pytest.mark.parametrize(
    "model", [LLAMA, MIXTURE, BIASED, STATES], ids=lambda each: each["model_type"]
)
def test_an_export_is_read_by_transformers_and_trained_on(
    gangs: GangStarter, tmp_path: Path, model: dict[str, Any]
) -> None:
    config = run_of(tmp_path, model, steps=2, checkpoint={"every_steps": 2})
    gangs.run(train_rank, config, None, world_size=2, checkpoint_folder=tmp_path / "run")
    files, folder = named_checkpoint(str(tmp_path / "run")), tmp_path / "exported"
    export_checkpoint(files, config, folder)
    loaded, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    stored = whole_tensors(tmp_path / "run" / "step-00000002")
    named = dict(loaded.named_parameters()) | dict(loaded.named_buffers())
    ours = {n.removeprefix("model."): v for n, v in stored.items() if n.startswith("model.")}
    for name, values in ours.items():
        own = named[name].detach().numpy()
        np.testing.assert_array_equal(own.reshape(values.shape), values, err_msg=name)

    begun = run_of(tmp_path, model, steps=2, config_from=None, model_from=str(folder))
    gangs.run(train_rank, begun, None, world_size=2, checkpoint_folder=tmp_path / "again")
    losses = read_losses(tmp_path / "again" / "metrics.jsonl")
    assert losses == pytest.approx(plain_losses(begun), rel=1e-5)


@pytest.mark.parametrize("model", [LLAMA, STATES], ids=lambda each: each["model_type"])
def test_documents_of_a_window_train_as_each_alone(
    gangs: GangStarter, tmp_path: Path, model: dict[str, Any]
) -> None:
    """The first loss of packed files is the mean over their tokens, each document by itself."""
    config = run_of(
        tmp_path,
        model,
        steps=1,
        data={
            "source": str(write_text(tmp_path / "text")),
            "sequence_length": 16,
            "packing": "separate",
        },
    )
    gangs.run(train_rank, config, None, world_size=2, checkpoint_folder=tmp_path / "run")
    batch = open_run_data(config).training.batch(range(config.global_batch_size))
    assert batch.documents is not None
    torch.manual_seed(config.seed)
    plain = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(config.config_from))
    total = 0.0
    for inputs, targets, ids in zip(batch.inputs, batch.targets, batch.documents, strict=True):
        for number in np.unique(ids):
            own = ids == number
            logits = plain(input_ids=torch.from_numpy(inputs[own])[None]).logits[0]
            loss = F.cross_entropy(logits, torch.from_numpy(targets[own]), reduction="sum")
            total += float(loss.detach())
    count = int((batch.targets != -100).sum())
    [ours] = read_losses(tmp_path / "run" / "metrics.jsonl").values()
    assert ours == pytest.approx(total / count, rel=1e-5)


def test_another_config_json_is_not_gone_on_with(gangs: GangStarter, tmp_path: Path) -> None:
    asked = {"world_size": 1, "checkpoint_folder": tmp_path / "run"}
    gangs.run(train_rank, run_of(tmp_path, steps=1), None, **asked)
    other = run_of(tmp_path, {**LLAMA, "rms_norm_eps": 1e-3}, steps=2)
    with gangs.gang(train_rank, other, None, **asked) as gang:
        [[error]] = gang.results()
        assert gang.exit_codes() == [ExitCode.CONFIG]
    assert "config.json's rms_norm_eps" in error
