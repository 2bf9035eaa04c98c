from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from drumline_contract.config import ConfigError, Family, LoraConfig, ModelConfig, TrainerConfig
from drumline_contract.config.variants import Activation, NormPlacement
from drumline_contract.shapes.hugging_face import read_config, to_ours, to_theirs
from drumline_trainer.adapters.base import initialize_frozen_and_adapters
from drumline_trainer.adapters.peft import CONFIG_FILE, WEIGHTS_FILE, read_peft, write_peft
from drumline_trainer.models.hugging_face import HuggingFaceError, export_hugging_face
from drumline_trainer.models.hugging_face.names import our_shapes
from drumline_trainer.models.transformers.module import linear_layers
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import TensorSlice

MODEL = ModelConfig(layers=2, hidden_size=8, heads=2, kv_heads=1, ffn_size=16, vocab_size=256)
LORA = LoraConfig(rank=3, alpha=6.0, targets="query,down")
GEMMA = replace(
    MODEL,
    query_key_norm=True,
    norm_placement=NormPlacement.AROUND,
    activation=Activation.GELU_TANH,
    scaled_embedding=True,
)
FEATURES = {"attention.query": (8, 8), "feed_forward.down": (8, 16)}
"""Outputs and inputs."""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    weights = {name: torch.zeros(shape) for name, shape in our_shapes(MODEL).items()}
    export_hugging_face(weights, MODEL, tmp_path / "base")
    (tmp_path / "base" / "tokenizer.json").write_text("{}")
    return tmp_path / "base"


def adapters() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    made: dict[str, torch.Tensor] = {}
    for layer in range(2):
        for name, (outputs, inputs) in FEATURES.items():
            made[f"layers.{layer}.{name}.lora_a"] = torch.rand((3, inputs), generator=random)
            made[f"layers.{layer}.{name}.lora_b"] = torch.rand((outputs, 3), generator=random)
    return made


def write(base: Path, folder: Path, **changes: Any) -> Path:
    """And change the configuration."""
    write_peft(adapters(), folder, lora=LORA, model=MODEL, base=base, dtype=torch.float32)
    file = folder / CONFIG_FILE
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return folder


def test_names_and_settings_are_those_of_peft(base: Path, tmp_path: Path) -> None:
    folder = write(base, tmp_path / "adapter")
    settings = json.loads((folder / CONFIG_FILE).read_text())
    assert settings["target_modules"] == ["down_proj", "q_proj"]
    assert (settings["r"], settings["lora_alpha"], settings["peft_type"]) == (3, 6.0, "LORA")
    tensors = load_file(folder / WEIGHTS_FILE)
    assert len(tensors) == 8
    name = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"
    assert torch.equal(tensors[name], adapters()["layers.1.attention.query.lora_a"])
    assert (folder / "tokenizer.json").exists()


def test_layers_inside_of_a_multimodal_model_have_the_names_of_its_module(tmp_path: Path) -> None:
    """Else peft finds no layer for an adapter and warns only, and adapts the vision tower."""
    inside = to_theirs(GEMMA, dtype="float32")
    outer = {"model_type": "gemma3", "text_config": inside, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(outer))
    model = to_ours(read_config(tmp_path))
    write_peft(
        adapters(), tmp_path / "out", lora=LORA, model=model, base=tmp_path, dtype=torch.float32
    )
    settings = json.loads((tmp_path / "out" / CONFIG_FILE).read_text())
    layer = "model.language_model.layers.1.self_attn.q_proj"
    assert f"base_model.model.{layer}.lora_A.weight" in load_file(tmp_path / "out" / WEIGHTS_FILE)
    assert re.fullmatch(settings["target_modules"], layer)
    assert not re.fullmatch(settings["target_modules"], layer.replace("language_model", "vision"))
    stored = read_peft(tmp_path / "out", model=model, base=tmp_path)
    assert stored.tensors.keys() == adapters().keys()


def test_feed_forward_layers_of_a_mixture_are_named_by_their_weights(tmp_path: Path) -> None:
    """peft takes their names in `target_modules` for experts, and drops the adapters."""
    model = replace(MODEL, experts=4, expert_ffn_size=16, dense_layers=2, query_key_norm=True)
    model = replace(model, layers=3, tied_embeddings=False)
    (tmp_path / "config.json").write_text(json.dumps(to_theirs(model, dtype="float32")))
    made = {name: tensor for name, tensor in adapters().items() if "down" in name}
    lora = LoraConfig(rank=3, alpha=6.0, targets="down")
    write_peft(made, tmp_path / "out", lora=lora, model=model, base=tmp_path, dtype=torch.float32)
    settings = json.loads((tmp_path / "out" / CONFIG_FILE).read_text())
    assert settings["target_modules"] == []
    assert settings["target_parameters"] == ["mlp.down_proj.weight"]
    stored = read_peft(tmp_path / "out", model=model, base=tmp_path)
    assert (stored.config.targets, stored.tensors.keys()) == ("down", made.keys())


def test_a_number_is_no_name_of_a_layer(tmp_path: Path) -> None:
    """peft would find the second block of the model, too."""
    model = ModelConfig(family=Family.TRANSFORMERS, config_json="{}", vocab_size=9)
    layers = ("h.0.ffn.1", "h.0.ffn.dense.dense", "h.0.query")
    made = {f"{layer}.lora_{part}": torch.zeros(3, 3) for layer in layers for part in "ab"}
    write_peft(made, tmp_path / "out", lora=LORA, model=model, base=tmp_path, dtype=torch.float32)
    settings = json.loads((tmp_path / "out" / CONFIG_FILE).read_text())
    assert settings["target_modules"] == ["h.0.ffn.1", "h.0.ffn.dense.dense", "query"]


def test_layers_of_mamba_whose_weight_is_read_alone_have_no_adapters() -> None:
    library = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "vocab_size": 32, "state_size": 4}
    module = library.AutoModelForCausalLM.from_config(
        library.AutoConfig.for_model("mamba", **sizes)
    )
    names = {name.rpartition(".")[2] for name in linear_layers(module)}
    assert names == {"in_proj", "x_proj"}


def test_what_was_written_is_read_again(base: Path, tmp_path: Path) -> None:
    stored = read_peft(write(base, tmp_path / "adapter"), model=MODEL, base=base)
    assert (stored.config.rank, stored.config.alpha) == (3, 6.0)
    assert stored.config.projections == LORA.projections
    assert stored.tensors.keys() == adapters().keys()
    assert all(torch.equal(stored.tensors[name], tensor) for name, tensor in adapters().items())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"use_dora": True}, "use_dora is True; only plain adapters"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern is"),
        ({"r": "many"}, "r must be a whole number, not 'many'"),
        ({"r": 3.0}, "r must be a whole number, not 3.0"),
        ({"r": True}, "r must be a whole number, not True"),
        ({"r": 0}, "r and lora_alpha: .*greater than 0"),
        ({"lora_alpha": "6"}, "lora_alpha must be a finite number, not '6'"),
        ({"lora_alpha": float("inf")}, "lora_alpha must be a finite number, not inf"),
        ({"use_rslora": "yes"}, "use_rslora must be true or false"),
        *(
            ({"init_lora_weights": kind}, f"init_lora_weights is '{kind}'.*save_pretrained")
            for kind in ("pissa", "pissa_niter_16", "olora", "loftq", "corda", "mica", "new")
        ),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is"),
        ({"target_parameters": ["mlp.experts.down_proj"]}, "target_parameters is"),
        ({"use_next_variant": True}, "use_next_variant is True, a key that is not known"),
        ({"next_factor": 0.5}, "next_factor is 0.5, a key that is not known"),
    ],
)
def test_other_kinds_of_adapters_are_refused(
    base: Path, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(HuggingFaceError, match=words):
        read_peft(write(base, tmp_path / "adapter", **changes), model=MODEL, base=base)


@pytest.mark.parametrize(
    "changes",
    [
        {"modules_to_save": []},
        {"init_lora_weights": False},
        {"init_lora_weights": "gaussian"},
        {"init_lora_weights": "eva", "eva_config": {"rho": 2.0}},
        {"target_modules": "all-linear", "exclude_modules": ["lm_head"], "lora_dropout": 0.1},
        {"auto_mapping": {"unsloth_fixed": True}, "peft_version": "0.21.2", "revision": "main"},
        {"qalora_group_size": 16, "use_qalora": False, "arrow_config": None, "use_next": False},
    ],
)
def test_keys_that_change_nothing_are_passed_over(
    base: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    stored = read_peft(write(base, tmp_path / "adapter", **changes), model=MODEL, base=base)
    assert stored.tensors.keys() == adapters().keys()


def test_the_kind_of_scale_goes_out_and_comes_back(base: Path, tmp_path: Path) -> None:
    folder, lora = tmp_path / "adapter", LoraConfig(rank=3, alpha=6.0, targets="query", rslora=True)
    queries = {name: tensor for name, tensor in adapters().items() if ".query." in name}
    write_peft(queries, folder, lora=lora, model=MODEL, base=base, dtype=torch.float32)
    assert json.loads((folder / CONFIG_FILE).read_text())["use_rslora"] is True
    assert read_peft(folder, model=MODEL, base=base).config == lora


def test_a_head_of_its_own_is_no_projection(tmp_path: Path) -> None:
    """It is called `output`, as is the last projection of attention."""
    model = replace(MODEL, tied_embeddings=False)
    shapes = our_shapes(model)
    weights = {name: torch.zeros(shape) for name, shape in shapes.items()}
    export_hugging_face(weights, model, tmp_path / "base")
    lora = LoraConfig(rank=3)
    layers = [
        name.removesuffix(".weight")
        for name in shapes
        if name.split(".")[-2] in lora.projections_of(model) and name.startswith("layers.")
    ]
    made = {f"{layer}.lora_{part}": torch.zeros(1) for layer in layers for part in ("a", "b")}
    assert any("attention.output" in name for name in made)
    write_peft(
        made, tmp_path / "out", lora=lora, model=model, base=tmp_path / "base", dtype=torch.float32
    )
    stored = read_peft(tmp_path / "out", model=model, base=tmp_path / "base")
    assert stored.tensors.keys() == made.keys()
    assert stored.config.projections == lora.projections_of(model)


def test_adapters_of_another_model_and_of_some_layers_are_refused(
    base: Path, tmp_path: Path
) -> None:
    folder = write(base, tmp_path / "adapter")
    tensors = load_file(folder / WEIGHTS_FILE)
    less = {name: tensor for name, tensor in tensors.items() if "layers.1" not in name}
    save_file(less, folder / WEIGHTS_FILE)
    with pytest.raises(HuggingFaceError, match=r"missing: layers\.1\.attention\.query"):
        read_peft(folder, model=MODEL, base=base)
    tensors["base_model.model.lm_head.lora_A.weight"] = torch.zeros(1)
    save_file(tensors, folder / WEIGHTS_FILE)
    with pytest.raises(HuggingFaceError, match=r"lm_head\.lora_A\.weight"):
        read_peft(folder, model=MODEL, base=base)


def begun(base: Path, folder: Path, **lora: Any) -> dict[str, torch.Tensor]:
    """The lower half of each adapter's rows, as a rank has them."""
    raw = {"rank": 3, "alpha": 6.0, "targets": "query,down", "adapters_from": str(folder)}
    config = TrainerConfig(model=MODEL, model_from=str(base), lora=LoraConfig(**(raw | lora)))
    slices: list[TensorSlice] = []
    for name, tensor in adapters().items():
        rows, columns = tensor.shape
        box = Box(offsets=(rows // 2, 0), shape=(rows - rows // 2, columns))
        slices.append(
            TensorSlice(
                name=name, shape=tuple(tensor.shape), box=box, tensor=torch.empty(box.shape)
            )
        )
    initialize_frozen_and_adapters(slices, [], [], config=config, restored=None)
    return {part.name: part.tensor for part in slices}


def test_training_goes_on_with_a_part_of_them_on_each_rank(base: Path, tmp_path: Path) -> None:
    parts = begun(base, write(base, tmp_path / "adapter"))
    for name, tensor in adapters().items():
        assert torch.equal(parts[name], tensor[len(tensor) // 2 :])


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"rank": 4}, "lora.rank: .* set it to 3"),
        ({"alpha": 1.0}, "lora.alpha: .* set it to 6.0"),
        ({"targets": "query"}, "lora.targets: .* set it to down,query"),
        ({"rslora": True}, "lora.rslora: .* set it to false"),
    ],
)
def test_settings_that_differ_are_said(
    base: Path, tmp_path: Path, setting: dict[str, Any], words: str
) -> None:
    folder = write(base, tmp_path / "adapter")
    with pytest.raises(ConfigError, match=words):
        begun(base, folder, **setting)


def test_projections_that_lie_in_one_tensor_have_no_adapters_alone(tmp_path: Path) -> None:
    described = {"model_type": "phi3"}
    model = ModelConfig(layers=1, hidden_size=8, heads=2, kv_heads=1, ffn_size=16, vocab_size=256)
    weights = {name: torch.zeros(shape) for name, shape in our_shapes(model).items()}
    export_hugging_face(weights, model, tmp_path / "llama")
    raw = json.loads((tmp_path / "llama" / "config.json").read_text())
    (tmp_path / "llama" / "config.json").write_text(json.dumps(raw | described))
    with pytest.raises(HuggingFaceError, match="--adapter"):
        write_peft(
            {"layers.0.attention.query.lora_a": torch.zeros(3, 8)},
            tmp_path / "adapter",
            lora=LORA,
            model=model,
            base=tmp_path / "llama",
            dtype=torch.float32,
        )
