"""Models of `transformers`, made there at random: what they compute, what they learn, what returns.

Each is saved by them, read by us, trained for three steps by both, and written back.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from drumline_contract.config import ModelConfig
from drumline_contract.config.rope import RopeScaling, RopeScalingKind
from drumline_contract.config.variants import NormPlacement
from drumline_contract.shapes.flops import weights
from drumline_contract.shapes.hugging_face import (
    HuggingFaceError,
    kind_of,
    read_json,
    to_ours,
    to_theirs,
)
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.hugging_face import (
    export_hugging_face,
    import_hugging_face,
    load_hugging_face,
)
from drumline_trainer.models.initialize import initialize
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import named_weights, slices_of

pytestmark = pytest.mark.extended(keep=24)

TOKENS_BS = torch.randint(0, 300, (2, 24), generator=torch.Generator().manual_seed(0))
SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 4.0,
    "beta_slow": 0.5,
}
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.25, 1.5, 2.0],
    "long_factor": [1.0, 2.5, 7.75, 30.0],
}
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
DEEPSEEK: dict[str, Any] = {
    **SIZES,
    **EXPERTS,
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
    "q_lora_rank": 20,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 8,
    "n_group": 4,
    "topk_group": 2,
}
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    **DEEPSEEK,
    "n_shared_experts": 1,
    "routed_scaling_factor": 2.5,
    "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
}
DEEPSEEK_V2: dict[str, Any] = {
    "model_type": "deepseek_v2",
    **DEEPSEEK,
    "n_shared_experts": 2,
    "routed_scaling_factor": 16.0,
    "topk_method": "group_limited_greedy",
    "rope_parameters": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
}
THEIRS: dict[str, dict[str, Any]] = {
    "deepseek-v3": DEEPSEEK_V3,
    "deepseek-v3 without a latent of queries, halves turned": {
        **DEEPSEEK_V3,
        "q_lora_rank": None,
        "rope_interleave": False,
        "norm_topk_prob": False,
        "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5},
    },
    "deepseek-v2": DEEPSEEK_V2,
    "deepseek-v2-lite": {
        **DEEPSEEK_V2,
        "topk_method": "greedy",
        "q_lora_rank": None,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
    },
    "deepseek of today's length": {
        **DEEPSEEK_V2,
        "first_k_dense_replace": 0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    },
    "llama": {"model_type": "llama", **SIZES, "attention_bias": True},
    "llama 3.1": {"model_type": "llama", **SIZES, "rope_parameters": LLAMA_3},
    "mistral": {"model_type": "mistral", **SIZES, "sliding_window": 5},
    "mistral 7b v0.3": {"model_type": "mistral", **SIZES, "sliding_window": None, "head_dim": 12},
    "mixtral": {"model_type": "mixtral", **SIZES, "num_local_experts": 4, "sliding_window": 7},
    "qwen2.5": {"model_type": "qwen2", **SIZES, "tie_word_embeddings": True},
    "qwen2 with windows": {
        "model_type": "qwen2",
        **SIZES,
        "use_sliding_window": True,
        "sliding_window": 6,
        "max_window_layers": 0,
    },
    "qwen3": {"model_type": "qwen3", **SIZES, "head_dim": 16, "attention_bias": True},
    "qwen3-moe": {"model_type": "qwen3_moe", **SIZES, **EXPERTS, "num_experts": 5, "head_dim": 16},
    "qwen3-moe with dense layers, shares as they are": {
        "model_type": "qwen3_moe",
        **SIZES,
        **EXPERTS,
        "num_experts": 5,
        "head_dim": 16,
        "mlp_only_layers": [0, 1],
        "norm_topk_prob": False,
    },
    "gpt-oss": {
        "model_type": "gpt_oss",
        **SIZES,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "head_dim": 16,
        "sliding_window": 5,
        "rope_parameters": {
            **YARN,
            "truncate": False,
            "rope_theta": 15e4,
        },
    },
    "phi3": {"model_type": "phi3", **SIZES, "pad_token_id": 0, "sliding_window": 9},
    "phi4-mini": {
        "model_type": "phi3",
        **SIZES,
        "pad_token_id": 0,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.75,
        },
    },
    "phi3 with longrope": {
        "model_type": "phi3",
        **SIZES,
        "pad_token_id": 0,
        "original_max_position_embeddings": 16,
        "rope_parameters": LONGROPE,
    },
    "phi3 with longrope, short sequences": {
        "model_type": "phi3",
        **SIZES,
        "pad_token_id": 0,
        "original_max_position_embeddings": 24,
        "rope_parameters": {**LONGROPE, "attention_factor": 1.5},
    },
    "phi4-mini with longrope": {
        "model_type": "phi3",
        **SIZES,
        "pad_token_id": 0,
        "tie_word_embeddings": True,
        "original_max_position_embeddings": 16,
        "rope_parameters": {
            **LONGROPE,
            "partial_rotary_factor": 0.75,
            "short_factor": [1.0, 1.25, 1.5],
            "long_factor": [1.0, 2.5, 7.75],
        },
    },
    "llama with longrope": {
        "model_type": "llama",
        **SIZES,
        "rope_parameters": {
            **LONGROPE,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    },
    "olmo2": {"model_type": "olmo2", **SIZES},
    "smollm3": {
        "model_type": "smollm3",
        **SIZES,
        "pad_token_id": 0,
        "no_rope_layer_interval": 2,
    },
    "granite": {
        "model_type": "granite",
        **SIZES,
        "tie_word_embeddings": True,
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.0625,
        "logits_scaling": 3.0,
    },
    "gemma2": {
        "model_type": "gemma2",
        **SIZES,
        "head_dim": 16,
        "query_pre_attn_scalar": 24,
        "sliding_window": 6,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        **SIZES,
        "head_dim": 16,
        "query_pre_attn_scalar": 24,
        "sliding_window": 6,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        },
    },
    "llama with yarn": {"model_type": "llama", **SIZES, "rope_parameters": YARN},
    "gpt2": {"model_type": "gpt2", "vocab_size": 300, "n_embd": 32, "n_layer": 2, "n_head": 4},
}
NO_DROPOUT = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
EVERY = pytest.mark.parametrize("values", THEIRS.values(), ids=THEIRS)


@pytest.fixture(autouse=True)
def _quiet() -> None:
    """Their progress bars and advice are for people."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def theirs_of(values: dict[str, Any]) -> nn.Module:
    """With weights that are all different, norms and biases too, and large enough to matter."""
    kind = values["model_type"]
    rest = {name: value for name, value in values.items() if name != "model_type"}
    settings = {"norm_topk_prob": True} if kind == "qwen3_moe" else {}
    settings |= NO_DROPOUT if kind == "gpt2" else {}
    config = AutoConfig.for_model(kind, **(settings | rest))
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.add_(torch.randn(buffer.shape, generator=generator), alpha=0.3)
    return model.float()


def imported(folder: Path) -> nn.Module:
    config, stored = import_hugging_face(folder)
    model = build_on_meta(config).to_empty(device="cpu")
    named = dict(named_weights(model))
    assert weights(config) == sum(weight.numel() for weight in named.values())
    with torch.no_grad():
        for name, tensor in stored:
            named.pop(name).copy_(tensor)
    assert not named
    return model


def check_slices(folder: Path) -> None:
    """All but the first row of every weight, read alone."""
    for expected in slices_of(imported(folder)):
        rows, *rest = expected.shape
        box = Box(offsets=(1, *(0 for _ in rest)), shape=(rows - 1, *rest))
        part = replace(expected, box=box, tensor=torch.empty(box.shape))
        load_hugging_face(folder, [part], config=to_ours(read_json(folder / "config.json")))
        assert torch.equal(part.tensor, expected.tensor[1:]), part.name


def loss_of(logits_BSV: Tensor) -> Tensor:
    return F.cross_entropy(logits_BSV[:, :-1].flatten(0, 1), TOKENS_BS[:, 1:].flatten())


def three_losses(model: nn.Module, logits: Any) -> list[float]:
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    decaying = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0}]
    # an epsilon far above rounding: of slopes near zero Adam else makes full steps either way
    optimizer = torch.optim.AdamW(decaying, lr=1e-3, eps=1e-4)
    losses: list[float] = []
    for _ in range(3):
        loss = loss_of(logits(TOKENS_BS))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@EVERY
def test_a_model_of_theirs_computes_and_learns_the_same_here(
    values: dict[str, Any], tmp_path: Path
) -> None:
    theirs = theirs_of(values)
    theirs.save_pretrained(tmp_path)
    ours = imported(tmp_path)
    with torch.no_grad():
        ours_BSV, theirs_BSV = ours(TOKENS_BS), theirs(TOKENS_BS).logits
    assert theirs_BSV.std() > 0.1
    assert (ours_BSV - theirs_BSV).abs().max() <= 1e-4
    here = three_losses(ours, ours)
    there = three_losses(theirs, lambda tokens: theirs(tokens).logits)
    assert here == pytest.approx(there, abs=1e-5)
    assert there[2] < there[0]


@EVERY
def test_a_model_of_theirs_goes_back_as_it_came(values: dict[str, Any], tmp_path: Path) -> None:
    theirs = theirs_of(values)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = imported(tmp_path / "theirs")
    export_hugging_face(
        dict(named_weights(ours)), ours.config, tmp_path / "back", like=tmp_path / "theirs"
    )
    stored, back = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "back"))
    assert stored.keys() == back.keys()
    for name, tensor in stored.items():
        # norms of Gemma are kept as 1 + weight
        close = values["model_type"].startswith("gemma") and name.endswith("norm.weight")
        assert (tensor - back[name]).abs().max() <= (1.2e-7 if close else 0), name
    again, loading = AutoModelForCausalLM.from_pretrained(
        tmp_path / "back", dtype=torch.float32, output_loading_info=True
    )
    assert not any(loading[f"{kind}_keys"] for kind in ("missing", "unexpected", "mismatched"))
    assert (again(TOKENS_BS).logits - theirs(TOKENS_BS).logits).abs().max() <= 1e-4


@pytest.mark.parametrize("name", ["gpt-oss", "gemma2", "phi3", "deepseek-v3"])
def test_a_rank_fills_its_slices_of_tensors_that_are_laid_out_otherwise(
    name: str, tmp_path: Path
) -> None:
    theirs_of(THEIRS[name]).save_pretrained(tmp_path)
    check_slices(tmp_path)


def test_corrections_of_routers_keep_their_bits_in_any_type(tmp_path: Path) -> None:
    theirs = theirs_of(DEEPSEEK_V3)
    theirs.bfloat16().save_pretrained(tmp_path / "theirs")
    ours = imported(tmp_path / "theirs")
    export_hugging_face(
        dict(named_weights(ours)),
        ours.config,
        tmp_path / "back",
        dtype=torch.bfloat16,
        like=tmp_path / "theirs",
    )
    stored, back = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "back"))
    assert {name for name, tensor in back.items() if tensor.dtype is torch.float32} == {
        f"model.layers.{layer}.mlp.gate.e_score_correction_bias" for layer in (1, 2)
    }
    assert all(torch.equal(tensor, back[name]) for name, tensor in stored.items())


def test_layers_that_predict_further_tokens_are_left_out_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = theirs_of(DEEPSEEK_V3)
    theirs.save_pretrained(tmp_path / "theirs")
    path = tmp_path / "theirs" / "model.safetensors"
    further = {"model.layers.3.eh_proj.weight": torch.ones(32, 64), "model.layers.3.x": TOKENS_BS}
    save_file(load_file(path) | further, path, metadata={"format": "pt"})
    caplog.set_level("INFO", logger="drumline_trainer")
    ours = imported(tmp_path / "theirs")
    folder = tmp_path / "theirs"
    assert caplog.messages == [
        f"{folder}: 2 tensors of layers that predict further tokens are left out"
    ]
    assert (ours(TOKENS_BS) - theirs(TOKENS_BS).logits).abs().max() <= 1e-4
    export_hugging_face(
        dict(named_weights(ours)), ours.config, tmp_path / "back", like=tmp_path / "theirs"
    )
    assert read_json(tmp_path / "back" / "config.json")["num_nextn_predict_layers"] == 0


def test_a_layer_whose_number_no_model_has_is_an_unknown_tensor(tmp_path: Path) -> None:
    theirs_of(DEEPSEEK_V3).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    name = f"model.layers.{'9' * 5000}.x"
    save_file(load_file(path) | {name: TOKENS_BS}, path, metadata={"format": "pt"})
    with pytest.raises(HuggingFaceError, match="9999"):
        imported(tmp_path)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"num_key_value_heads": 2}, "each of the 4 heads has its own keys, not 2"),
        ({"attention_bias": True}, "attention_bias is True; only False"),
        ({"scoring_func": "softmax"}, "scoring_func is 'softmax'; only 'sigmoid'"),
        ({"moe_layer_freq": 2}, "moe_layer_freq is 2; only 1"),
        ({"num_experts_per_tok": 5}, "5 are more than the 4 experts of groups_per_token 2"),
        ({"n_group": 3}, "8 experts do not divide by 3"),
        ({"n_group": 8}, "a group's best two experts count"),
        ({"topk_group": 5}, "5 are more than the 4 groups"),
        ({"v_head_dim": 24}, "value_size: 24 is above model.head_size 16"),
        ({"qk_rope_head_dim": 5}, "turned_size: 5 is odd"),
        ({"qk_nope_head_dim": None}, "qk_nope_head_dim and qk_rope_head_dim must be numbers"),
        (
            {"quantization_config": {"quant_method": "fp8"}},
            "weight_block_size of quantization_config is None",
        ),
    ],
)
def test_deepseek_that_cannot_be_is_refused(changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(HuggingFaceError, match=sentence):
        to_ours({**DEEPSEEK_V3, **changed})


def test_dense_layers_of_qwen_are_the_first() -> None:
    qwen = THEIRS["qwen3-moe with dense layers, shares as they are"]
    assert to_ours(qwen).dense_layers == 2
    with pytest.raises(HuggingFaceError, match=r"mlp_only_layers.*2"):
        to_ours({**qwen, "mlp_only_layers": [2]})


@pytest.mark.parametrize(
    ("changed", "every"),
    [
        ({}, 4),
        ({"no_rope_layer_interval": 3}, 3),
        ({"no_rope_layers": [1, 0, 1, 0, 0]}, 2),
        ({"no_rope_layers": [1, 1, 1]}, 0),
        ({"no_rope_layers": [0, 0, 0]}, 1),
    ],
)
def test_layers_of_smollm3_without_rope_have_a_period(changed: dict[str, Any], every: int) -> None:
    assert to_ours({"model_type": "smollm3", **SIZES, **changed}).no_rope_every == every


@pytest.mark.parametrize(
    ("model_type", "changed", "sentence"),
    [
        ("smollm3", {"no_rope_layers": [1, 0, 0]}, "no_rope_layers has no period"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "must be a list with a number for each layer"),
        ("smollm3", {"no_rope_layers": 2}, "must be a list with a number for each layer"),
        ("smollm3", {"use_sliding_window": True}, "use_sliding_window is True; only False"),
        ("granite", {"attention_multiplier": 0.3}, "only 1 / √n of a whole n"),
        ("granite", {"attention_multiplier": 2}, "is 2; only numbers above 0 and at most 1"),
        ("granite", {"attention_multiplier": 1e-200}, "only 1 / √n of a whole n"),
        ("granite", {"attention_multiplier": True}, "is True; only numbers above 0"),
        ("granite", {"logits_scaling": 0}, "logits_scaling: must be greater than 0"),
    ],
)
def test_smollm3_and_granite_that_cannot_be_are_refused(
    model_type: str, changed: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(HuggingFaceError, match=sentence):
        to_ours({"model_type": model_type, **SIZES, **changed})


def test_what_inference_needs_goes_along(tmp_path: Path) -> None:
    theirs = theirs_of({"model_type": "qwen2", **SIZES, "eos_token_id": [7, 9], "bos_token_id": 5})
    theirs.save_pretrained(tmp_path / "theirs")
    companions = {"tokenizer.json": "{}", "chat_template.jinja": "{{ messages }}"}
    more = "additional_chat_templates"
    for folder, name in (("theirs", "tool_use"), ("back", "rag")):
        (tmp_path / folder / more).mkdir(parents=True)
        (tmp_path / folder / more / f"{name}.jinja").write_text(name)
    for name, text in companions.items():
        (tmp_path / "theirs" / name).write_text(text)
    (tmp_path / "back" / "added_tokens.json").write_text("of an earlier export")
    (tmp_path / "theirs" / "training_args.bin").write_bytes(b"pickled")
    ours = imported(tmp_path / "theirs")
    longer = replace(ours.config, max_positions=128)
    export_hugging_face(
        dict(ours.named_parameters()),
        longer,
        tmp_path / "back",
        dtype=torch.bfloat16,
        like=tmp_path / "theirs",
    )
    files = {path.name for path in (tmp_path / "back").iterdir()}
    own = {"config.json", "generation_config.json", "model.safetensors"}
    assert files == {*companions, *own, more}
    assert [path.name for path in (tmp_path / "back" / more).iterdir()] == ["tool_use.jinja"]
    assert (tmp_path / "back" / "chat_template.jinja").read_text() == "{{ messages }}"
    again = AutoConfig.from_pretrained(tmp_path / "back")
    assert (again.bos_token_id, again.eos_token_id) == (5, [7, 9])
    assert (again.model_type, again.dtype) == ("qwen2", torch.bfloat16)
    assert again.max_position_embeddings == 128


def test_without_a_folder_to_follow_the_first_type_that_computes_the_same_is_written() -> None:
    config = ModelConfig(vocab_size=300, norm_placement=NormPlacement.AFTER)
    with pytest.raises(HuggingFaceError, match=r"llama.*norm_placement"):
        kind_of(config)
    phi = {"model_type": "phi3", **SIZES, "partial_rotary_factor": 0.5}
    # others of their types turn whole heads, whatever their config.json says
    assert kind_of(to_ours(phi)).model_type == "phi3"
    with pytest.raises(HuggingFaceError, match="which llama does not heed in transformers"):
        to_ours({**phi, "model_type": "llama"})


def test_phi_of_a_small_vocabulary_is_loaded_without_a_folder_to_follow(tmp_path: Path) -> None:
    config = to_ours({"model_type": "phi3", **SIZES, "partial_rotary_factor": 0.5})
    ours = build_on_meta(config).to_empty(device="cpu")
    initialize(ours, seed=0)
    export_hugging_face(dict(ours.named_parameters()), config, tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert theirs.config.model_type == "phi3"
    assert (ours(TOKENS_BS) - theirs(TOKENS_BS).logits).abs().max() <= 1e-4


def test_a_base_beside_the_section_that_overrides_it_is_not_written() -> None:
    """transformers reads `rope_scaling`, which is written, with the base beside it."""
    raw = {"model_type": "llama", **SIZES, "rope_theta": 10.0, "rope_parameters": YARN}
    written = to_theirs(to_ours(raw), dtype="float32", like=raw)
    assert AutoConfig.for_model(**written).rope_parameters["rope_theta"] == YARN["rope_theta"]


def test_phi_trained_on_longer_sequences_keeps_its_magnitude(tmp_path: Path) -> None:
    """It follows from the longest sequence where config.json does not say it."""
    theirs = theirs_of(THEIRS["phi3 with longrope"])
    theirs.save_pretrained(tmp_path / "theirs")
    ours = imported(tmp_path / "theirs")
    longer = replace(ours.config, max_positions=4096)
    export_hugging_face(
        dict(ours.named_parameters()), longer, tmp_path / "back", like=tmp_path / "theirs"
    )
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "back", dtype=torch.float32)
    assert again.config.max_position_embeddings == 4096
    assert (again(TOKENS_BS).logits - theirs(TOKENS_BS).logits).abs().max() <= 1e-4


@pytest.mark.parametrize("kind", ["su", "yarn", "longrope"])
def test_longrope_of_phi_has_earlier_names(kind: str) -> None:
    scaling = {"type": kind, **{key: LONGROPE[key] for key in ("short_factor", "long_factor")}}
    raw = {"model_type": "phi3", **SIZES, "rope_scaling": scaling}
    ours = to_ours({**raw, "original_max_position_embeddings": 16}).rope_scaling
    assert ours == RopeScaling(
        kind=RopeScalingKind.LONGROPE,
        factor=4.0,
        original_positions=16,
        short_factors="1.0,1.25,1.5,2.0",
        long_factors="1.0,2.5,7.75,30.0",
    )
    assert ours.multiplier == math.sqrt(1.5)  # 1 + ln 4 / ln 16


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"short_factor": "1,1,1,1"}, "short_factor of rope_scaling must be a list of numbers"),
        ({"long_factor": [1, True, 1, 1]}, "long_factor of rope_scaling must be a list"),
        ({"long_factor": [1.0, 2.0]}, "long_factors: a head turns 4 pairs, and these are of 2"),
        ({"long_factor": None}, "rope_scaling lacks long_factor"),
        ({"short_mscale": 1.2}, "short_mscale of rope_scaling is 1.2"),
    ],
)
def test_longrope_that_cannot_be_is_refused(changed: dict[str, Any], sentence: str) -> None:
    raw = {"model_type": "phi3", **SIZES, "original_max_position_embeddings": 16}
    with pytest.raises(HuggingFaceError, match=sentence):
        to_ours({**raw, "rope_scaling": {**LONGROPE, **changed}})
