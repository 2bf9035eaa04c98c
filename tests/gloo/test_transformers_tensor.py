"""Train modules of transformers with tensor ranks by the plan of their class (`tp_plan`)."""

from __future__ import annotations

from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from transformers import AutoModelForCausalLM

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract import ExitCode
from drumline_contract.config import ConfigError, TrainerConfig
from drumline_trainer.checkpoint.named import named_checkpoint
from drumline_trainer.export import export_checkpoint
from drumline_trainer.metrics.losses import read_losses
from drumline_trainer.models.transformers.module import CausalModule
from drumline_trainer.parallelism.tensor_parallel.replicas import check_replicas
from drumline_trainer.recovery.rendezvous import join
from drumline_trainer.sharding.slices import slices_of
from tests.gloo.gang import GangStarter
from tests.gloo.jobs import train_rank
from tests.gloo.stored import whole_tensors
from tests.gloo.test_transformers_modules import LLAMA, MIXTURE, STATES, plain_losses, run_of

BY_TENSOR: dict[str, Any] = {"parallelism": {"tensor": 2}}
DENSE = {**LLAMA, "num_key_value_heads": 2, "hidden_size": 32}
ODD = {**DENSE, "num_attention_heads": 3, "num_key_value_heads": 3, "hidden_size": 24}
KINDS: dict[str, dict[str, Any]] = {
    "llama": DENSE,
    # two ranks have 129 and 130 words of the head
    "mistral": {
        **DENSE,
        "model_type": "mistral",
        "tie_word_embeddings": False,
        "head_dim": 8,
        "vocab_size": 259,
    },
    # each rank normalizes its own heads
    "qwen3": {**DENSE, "model_type": "qwen3", "head_dim": 8},
    # the embedding scales, and its padding gets no gradient
    "gemma3_text": {**DENSE, "model_type": "gemma3_text", "head_dim": 8, "pad_token_id": 130},
    # one tensor has gate and up of the experts; all ranks route alike
    "qwen3_moe": {**MIXTURE, "num_key_value_heads": 2, "moe_intermediate_size": 24},
    # each rank adds the biases after the sum over the ranks
    "starcoder2": {**DENSE, "model_type": "starcoder2"},
}
CELLS: list[tuple[str, int, dict[str, Any]]] = [
    *((kind, 2, {}) for kind in KINDS),
    ("qwen3", 4, {"parallelism": {"tensor": 2}}),
    ("qwen3_moe", 4, {"parallelism": {"tensor": 2}}),
    ("llama", 4, {"parallelism": {"tensor": 2, "replicate": 2}}),
    ("qwen3_moe", 4, {"parallelism": {"tensor": 2, "data_parallel": "zero2"}}),
    ("qwen3", 2, {"micro_batch_size": 1, "parallelism": {"tensor": 2}}),
    ("qwen3_moe", 2, {"memory": {"recompute": "full"}, "parallelism": {"tensor": 2}}),
]


def run(gangs: GangStarter, folder: Path, config: TrainerConfig, *, ranks: int) -> dict[int, float]:
    gangs.run(train_rank, config, None, world_size=ranks, checkpoint_folder=folder)
    return read_losses(folder / "metrics.jsonl")


@pytest.mark.extended(keep=1, of="layers of transformers")
@pytest.mark.parametrize(("kind", "ranks", "settings"), CELLS, ids=str)
def test_losses_are_those_of_a_plain_loop(
    gangs: GangStarter, tmp_path: Path, kind: str, ranks: int, settings: dict[str, Any]
) -> None:
    config = run_of(tmp_path, KINDS[kind], steps=3, **{**BY_TENSOR, **settings})
    losses = run(gangs, tmp_path / "run", config, ranks=ranks)
    assert losses == pytest.approx(plain_losses(config), rel=1e-5)


@pytest.mark.extended(keep=1, of="layers of transformers")
@pytest.mark.parametrize("kind", ["qwen3_moe", "gemma3_text"])
def test_a_checkpoint_goes_on_in_other_layouts_and_out_to_transformers(
    gangs: GangStarter, tmp_path: Path, kind: str
) -> None:
    """Train on 2 tensor by 2 fsdp ranks, then on one rank, then on two tensor ranks. Export."""
    asked: dict[str, Any] = {
        "checkpoint": {"every_steps": 1, "keep": 4},
        "optimizer": {"schedule": "constant", "warmup_steps": 0, "weight_decay": 0.0},
    }
    config = run_of(tmp_path, KINDS[kind], steps=3, **asked)
    expected, folder = plain_losses(config), tmp_path / "run"
    cut = run_of(tmp_path, KINDS[kind], steps=3, **asked, **BY_TENSOR)
    run(gangs, folder, replace(cut, steps=1), ranks=4)
    run(gangs, folder, replace(config, steps=2), ranks=1)
    losses = run(gangs, folder, cut, ranks=2)
    assert losses == pytest.approx(expected, rel=1e-5)

    export_checkpoint(named_checkpoint(str(folder)), cut, tmp_path / "exported")
    loaded, report = AutoModelForCausalLM.from_pretrained(
        tmp_path / "exported", output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    named = dict(loaded.named_parameters())
    stored = whole_tensors(folder / "step-00000003")
    for name, values in stored.items():
        if name.startswith("model."):
            own = named[name.removeprefix("model.")].detach().numpy()
            np.testing.assert_array_equal(own.reshape(values.shape), values, err_msg=name)


@pytest.mark.extended(keep=1, of="layers of transformers")
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (STATES, "no plan (tp_plan) that cuts the layers of MambaForCausalLM"),
        (ODD, "num_attention_heads 3 of LlamaForCausalLM do not divide by 2"),
        ({**DENSE, "intermediate_size": 37}, "37 features of model.layers.0.mlp.gate_proj"),
        ({**DENSE, "model_type": "apertus"}, "only a part of the gradient of model.layers.0.mlp"),
    ],
    ids=lambda each: each["model_type"] if isinstance(each, dict) else "",
)
def test_what_cannot_be_cut_is_refused_by_name(
    gangs: GangStarter, tmp_path: Path, model: dict[str, Any], message: str
) -> None:
    """The plan of apertus omits the parameters of its activations."""
    config = run_of(tmp_path, model, steps=1, **BY_TENSOR)
    asked = {"world_size": 2, "checkpoint_folder": tmp_path / "run"}
    with gangs.gang(train_rank, config, None, **asked) as gang:
        errors = gang.results()
        assert gang.exit_codes() == [ExitCode.CONFIG] * 2
    assert message in errors[0][0]


def compare_with_nan(placement: Placement, pipe: Connection) -> None:
    """Compare a weight's gradient, which is NaN on one rank of the two, and a part on each."""
    join(placement, device=torch.device("cpu"))
    group, module = dist.group.WORLD, nn.Module()
    assert group is not None
    (weight,) = slices_of(nn.RMSNorm(8))
    vars(module)["replicated"] = frozenset({weight.name})
    undecided: list[bool] = []
    for rank in range(2):
        gradient = torch.full((8,), torch.nan if placement.rank == rank else 1.0)
        check_replicas(cast("CausalModule", module), (weight,), [gradient], group)
        undecided.append(bool(vars(module)["replicated"]))
    gradient = torch.arange(8.0) * (1 + placement.rank)
    with pytest.raises(ConfigError, match="only a part of the gradient of weight"):
        check_replicas(cast("CausalModule", module), (weight,), [gradient], group)
    pipe.send(undecided)


def test_gradients_of_a_step_with_a_nan_are_compared_in_a_later_step(gangs: GangStarter) -> None:
    assert gangs.run(compare_with_nan, world_size=2) == [[True, True]] * 2
