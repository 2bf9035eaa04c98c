"""Exchange with Hugging Face, and our models against those of other authors: `transformers`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from drumline_contract.config import Family, ModelConfig
from drumline_contract.config.rope import RopeScaling
from drumline_contract.config.variants import AttentionBias
from drumline_contract.shapes.hugging_face import with_model_of_folder
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.hugging_face import (
    HuggingFaceError,
    export_hugging_face,
    import_hugging_face,
    load_hugging_face,
)
from drumline_trainer.models.hugging_face.files import TensorFiles
from drumline_trainer.models.initialize import initialize
from drumline_trainer.models.loss import token_losses_sum
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import TensorSlice, slices_of

TOKENS_BS = torch.randint(0, 257, (2, 17), generator=torch.Generator().manual_seed(0))
LLAMA = ModelConfig(
    vocab_size=257, layers=2, hidden_size=32, ffn_size=48, rope_theta=500.0, max_positions=64
)
MODELS = {
    "llama tied": LLAMA,
    "llama": replace(LLAMA, tied_embeddings=False, norm_epsilon=1e-3),
    "llama with heads of their own size": replace(LLAMA, head_size=12),
    "llama 3.1": replace(
        LLAMA, rope_scaling=RopeScaling(factor=8.0, original_positions=32), max_positions=256
    ),
    "qwen3": replace(LLAMA, query_key_norm=True, head_size=16),
    "qwen3 moe": replace(
        LLAMA,
        query_key_norm=True,
        head_size=16,
        tied_embeddings=False,
        experts=6,
        experts_per_token=2,
        expert_ffn_size=24,
    ),
    "gpt2": replace(
        LLAMA, family=Family.GPT2, kv_heads=4, ffn_size=80, max_positions=20, rope_theta=10_000.0
    ),
    "gpt2 untied": replace(
        LLAMA,
        family=Family.GPT2,
        kv_heads=4,
        tied_embeddings=False,
        max_positions=20,
        rope_theta=10_000.0,
    ),
}
EVERY_MODEL = pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)


@pytest.fixture(autouse=True)
def _quiet() -> None:
    """Their progress bars and advice are for people."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def built(config: ModelConfig) -> nn.Module:
    """With weights that are all different, norms and biases too, and large enough to matter."""
    model = build_on_meta(config).to_empty(device="cpu")
    initialize(model, seed=7)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return model


def exported(model: nn.Module, folder: Path, **options: Any) -> nn.Module:
    """What transformers loads of our export; nothing may be missing, new or of another shape."""
    export_hugging_face(dict(model.named_parameters()), model.config, folder, **options)
    theirs, loading_info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not loading_info["missing_keys"]
    assert not loading_info["unexpected_keys"]
    assert not loading_info["mismatched_keys"]
    return theirs


def imported(folder: Path) -> nn.Module:
    config, weights = import_hugging_face(folder)
    model = build_on_meta(config).to_empty(device="cpu")
    named = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in weights:
            named.pop(name).copy_(tensor)
    assert not named
    return model


@EVERY_MODEL
def test_transformers_computes_the_same_logits_and_gradients(
    config: ModelConfig, tmp_path: Path
) -> None:
    model = built(config)
    theirs = exported(model, tmp_path)
    ours_BSV, theirs_BSV = model(TOKENS_BS), theirs(TOKENS_BS).logits
    assert ours_BSV.std() > 0.1
    assert (ours_BSV - theirs_BSV).abs().max() <= 1e-5 * max(1.0, ours_BSV.abs().max().item())

    token_losses_sum(ours_BSV, TOKENS_BS.roll(-1, 1)).backward()
    token_losses_sum(theirs_BSV, TOKENS_BS.roll(-1, 1)).backward()
    for name, gradient in gradients_by_our_names(theirs, config, tmp_path / "gradients"):
        ours = model.get_parameter(name).grad
        assert ours is not None
        # softmax does not see what is added to all scores: a key's bias has only a rounding error
        allowed = 1e-6 if name.endswith("key.bias") else 1e-5 * gradient.abs().max()
        assert (ours - gradient).abs().max() <= allowed, name


def gradients_by_our_names(
    theirs: nn.Module, config: ModelConfig, folder: Path
) -> Iterator[tuple[str, Tensor]]:
    """Their gradients take the way of the weights: stored by them, imported by us."""
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(parameter.grad)
    theirs.save_pretrained(folder)
    imported, gradients = import_hugging_face(folder)
    assert imported == config
    return gradients


@EVERY_MODEL
def test_what_is_exported_comes_back_bitwise(config: ModelConfig, tmp_path: Path) -> None:
    model = built(config)
    export_hugging_face(dict(model.named_parameters()), config, tmp_path)
    back = imported(tmp_path)
    assert back.config == config
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, back.get_parameter(name)), name


SMALL = {"vocab_size": 257, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def their_models() -> Iterator[nn.Module]:
    torch.manual_seed(1)
    llama = {**SMALL, "intermediate_size": 48, "num_key_value_heads": 2, "rms_norm_eps": 1e-4}
    yield LlamaForCausalLM(LlamaConfig(**llama))
    yield LlamaForCausalLM(LlamaConfig(**{**llama, "tie_word_embeddings": True, "head_dim": 8}))
    moe = {"moe_intermediate_size": 24, "num_experts": 5, "num_experts_per_tok": 3, "head_dim": 16}
    yield Qwen3MoeForCausalLM(Qwen3MoeConfig(**llama, **moe, norm_topk_prob=True))
    yield GPT2LMHeadModel(GPT2Config(vocab_size=257, n_embd=32, n_layer=2, n_head=4))


def test_what_transformers_saves_computes_the_same_here(tmp_path: Path) -> None:
    for theirs in their_models():
        folder = tmp_path / f"{theirs.config.model_type}-{theirs.config.tie_word_embeddings}"
        theirs.eval().save_pretrained(folder)
        ours_BSV = imported(folder).eval()(TOKENS_BS)
        theirs_BSV = theirs(TOKENS_BS).logits
        assert (ours_BSV - theirs_BSV).abs().max() <= 1e-5, folder.name


@pytest.mark.parametrize("along", [0, -1])
@EVERY_MODEL
def test_a_rank_reads_the_slices_it_holds_and_nothing_else(
    config: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, along: int
) -> None:
    whole = built(config)
    export_hugging_face(dict(whole.named_parameters()), config, tmp_path)
    ranks: list[list[TensorSlice]] = [[], []]
    for part in slices_of(whole):  # cut in the middle of a dimension
        cut, middle = along % len(part.shape), part.shape[along] // 2
        for rank, (start, size) in enumerate([(0, middle), (middle, part.shape[along] - middle)]):
            offsets, shape = [0] * len(part.shape), list(part.shape)
            offsets[cut], shape[cut] = start, size
            box = Box(offsets=tuple(offsets), shape=tuple(shape))
            ranks[rank].append(replace(part, box=box, tensor=torch.empty(box.shape)))
    elements: list[int] = []
    read_part = TensorFiles.read_part

    def counted(files: TensorFiles, name: str, part: tuple[slice, ...]) -> Tensor:
        tensor = read_part(files, name, part)
        elements.append(tensor.numel())
        return tensor

    monkeypatch.setattr(TensorFiles, "read_part", counted)
    monkeypatch.setattr(TensorFiles, "read", None)  # whole tensors
    for slices in ranks:
        load_hugging_face(tmp_path, slices, config=replace(config, dropout=0.1))
    for first, second, part in zip(*ranks, slices_of(whole), strict=True):
        joined = torch.cat([first.tensor, second.tensor], dim=along)
        assert torch.equal(joined, part.tensor), part.name
    assert sum(elements) == sum(part.tensor.numel() for part in slices_of(whole))


def test_weights_of_another_model_are_refused(folder: Path) -> None:
    other = replace(LLAMA, rope_theta=600.0, layers=3)
    with pytest.raises(HuggingFaceError, match=r"2.*3.*rope_theta.*500\.0"):
        load_hugging_face(folder, [], config=other)


def test_a_large_model_is_several_files_and_an_index(tmp_path: Path) -> None:
    model = built(MODELS["qwen3 moe"])
    theirs = exported(model, tmp_path, max_file_bytes=40_000)
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    assert len(files) > 3
    assert all((tmp_path / name).stat().st_size < 60_000 for name in files)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 4 * sum(p.numel() for p in model.parameters())
    torch.testing.assert_close(model(TOKENS_BS), theirs(TOKENS_BS).logits, rtol=1e-4, atol=1e-5)
    assert torch.equal(imported(tmp_path)(TOKENS_BS), model(TOKENS_BS))


def test_an_export_may_be_of_another_type(tmp_path: Path) -> None:
    model = built(LLAMA)
    export_hugging_face(dict(model.named_parameters()), LLAMA, tmp_path, dtype=torch.bfloat16)
    stored = load_file(tmp_path / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_gpt2_without_its_head_is_read_as_it_was_first_published(tmp_path: Path) -> None:
    theirs = GPT2LMHeadModel(GPT2Config(vocab_size=257, n_embd=32, n_layer=2, n_head=4)).eval()
    theirs.transformer.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert "wte.weight" in stored
    stored["h.0.attn.bias"] = torch.ones(1, 1, 8, 8).tril()  # the mask, once part of the file
    save_file(stored, tmp_path / "model.safetensors")
    ours_BSV = imported(tmp_path)(TOKENS_BS)
    assert (ours_BSV - theirs(TOKENS_BS).logits).abs().max() <= 1e-5


INT8 = {"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_threshold": 6.0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    export_hugging_face(dict(built(LLAMA).named_parameters()), LLAMA, tmp_path)
    return tmp_path


def changed(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"model_type": "bert"}, "model_type is 'bert'; one of llama, mistral, qwen2, qwen3"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; only 'silu' can be imported"),
        ({"mlp_bias": True}, "mlp_bias is True; only False can be imported"),
        ({"residual_multiplier": 0.2}, "'residual_multiplier' is 0.2, which llama is not known to"),
        ({"quantization_config": {"bits": 4}}, "quantization_config says that the weights are"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "weights are packed ('mxfp4')"),
        ({"quantization_config": INT8}, "packed ('bitsandbytes'); import the model in bf16 or"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "packed ('gptq'); import"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "packed ('awq'); import"),
        ({"rope_parameters": [1]}, "rope_parameters must be an object or null"),
        ({"rope_parameters": {"full_attention": {}}}, "rope_parameters differs between layers"),
        ({"rope_scaling": {"rope_type": "default", "beta": 2}}, "beta of rope_scaling is 2"),
        ({"num_attention_heads": 0}, "num_attention_heads: must be greater than 0"),
        ({"num_attention_heads": "4"}, "heads: must be int, not str"),
        ({"rope_scaling": {"rope_type": "dynamic"}}, "rope_scaling is of type 'dynamic'"),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}},
            "rope_scaling lacks high_freq_factor, original_max_position_embeddings",
        ),
        ({"vocab_size": "many"}, "vocab_size: must be int, not str"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: 4 heads do not divide by 3 kv_heads"),
        ({"num_key_value_heads": 3}, "use 2 or 4"),
        ({"num_key_value_heads": 0}, "num_key_value_heads: must be greater than 0, not 0"),
        ({"hidden_size": "wide"}, "hidden_size: must be int, not str"),
        ({"head_dim": 7}, "head_dim: a head of 7 is odd"),
        ({"rope_scaling": "llama3"}, "rope_scaling must be an object or null"),
        ({"hidden_size": 64}, "model.embed_tokens.weight: shape (257, 32), and config.json asks"),
        ({"num_hidden_layers": 3}, "9 tensors are missing: model.layers.2.input_layernorm.weight"),
        ({"num_hidden_layers": 1}, "9 tensors are unknown: model.layers.1.input_layernorm.weight"),
        ({"tie_word_embeddings": False}, "1 tensors are missing: lm_head.weight"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused_with_a_sentence(
    folder: Path, values: dict[str, Any], sentence: str
) -> None:
    changed(folder, **values)
    with pytest.raises(HuggingFaceError) as refused:
        import_hugging_face(folder)
    assert sentence in str(refused.value)


class Reads(dict[str, Tensor]):
    """Weights of which each access counts; they fail after so many."""

    def __init__(self, weights: dict[str, Tensor], *, last: int = 1_000) -> None:
        super().__init__(weights)
        self.count, self.last = 0, last

    def __getitem__(self, name: str) -> Tensor:
        self.count += 1
        if self.count > self.last:
            raise OSError("the claim is gone")
        return super().__getitem__(name)


def test_an_export_that_was_killed_goes_on_after_the_files_that_are_whole(tmp_path: Path) -> None:
    weights = dict(built(LLAMA).named_parameters())
    settings: dict[str, Any] = {"max_file_bytes": 10_000}
    export_hugging_face(weights, LLAMA, tmp_path / "whole", **settings)
    folder, begun = tmp_path / "killed", Reads(weights, last=12)
    with pytest.raises(OSError, match="gone"):
        export_hugging_face(begun, LLAMA, folder, identity="step 7", **settings)
    assert not (folder / "config.json").exists()
    kept = {path.name for path in folder.glob("*.safetensors")}
    assert kept
    again, lines = Reads(weights), list[str]()
    export_hugging_face(
        again, LLAMA, folder, identity="step 7", print_line=lines.append, **settings
    )
    assert again.count < len(weights)
    assert {line.partition(":")[0] for line in lines}.isdisjoint(kept)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}


@pytest.mark.parametrize("identity", ["step 8", ""])
def test_what_was_begun_of_other_weights_is_written_anew(tmp_path: Path, identity: str) -> None:
    weights = dict(built(LLAMA).named_parameters())
    settings: dict[str, Any] = {"max_file_bytes": 10_000, "identity": identity}
    with pytest.raises(OSError, match="gone"):
        export_hugging_face(
            Reads(weights, last=12), LLAMA, tmp_path, **settings | {"identity": "step 7"}
        )
    other = Reads({name: weight + 1 for name, weight in weights.items()})
    export_hugging_face(other, LLAMA, tmp_path, **settings)
    assert other.count == len(weights)


def test_an_export_over_another_is_unfinished_until_it_ends(folder: Path) -> None:
    weights = Reads(dict(built(LLAMA).named_parameters()), last=3)
    with pytest.raises(OSError, match="gone"):
        export_hugging_face(weights, LLAMA, folder)
    assert not (folder / "config.json").exists()


def test_a_field_that_is_missing_is_named(folder: Path) -> None:
    path = folder / "config.json"
    values = json.loads(path.read_text())
    del values["hidden_size"]
    path.write_text(json.dumps(values))
    with pytest.raises(HuggingFaceError, match="hidden_size is missing"):
        import_hugging_face(folder)


@pytest.mark.parametrize("key", ["hidden_size", "num_key_value_heads"])
def test_a_slip_in_a_field_s_name_is_named_and_not_ignored(folder: Path, key: str) -> None:
    """Without its heads for keys a model would have as many as heads, in silence."""
    path = folder / "config.json"
    values = json.loads(path.read_text())
    values[f"{key}x"] = values.pop(key)
    path.write_text(json.dumps(values))
    with pytest.raises(HuggingFaceError, match=rf"'{key}x' is .*\(did you mean {key}\?\)"):
        import_hugging_face(folder)


@pytest.mark.parametrize("name", ["../model.safetensors", "/model.safetensors", "weights.bin"])
def test_an_index_cannot_lead_out_of_the_folder_or_to_another_format(
    folder: Path, name: str
) -> None:
    index = {"weight_map": {"model.norm.weight": name}}
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(HuggingFaceError, match="is not a file of the folder"):
        import_hugging_face(folder)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("body", [None, b"", b"\x80\x04nothing of the kind"])
def test_a_file_that_is_missing_or_something_else_is_named(
    folder: Path, file: str, body: bytes | None
) -> None:
    (folder / file).unlink()
    if body is not None:
        (folder / file).write_bytes(body)
    with pytest.raises(HuggingFaceError, match=file):
        import_hugging_face(folder)


def test_a_weight_that_is_missing_or_of_another_shape_is_named(tmp_path: Path) -> None:
    weights = dict(built(LLAMA).named_parameters())
    norm = weights.pop("norm.weight")
    with pytest.raises(HuggingFaceError, match=r"norm.weight: missing"):
        export_hugging_face(weights, LLAMA, tmp_path)
    weights["norm.weight"] = norm[:3]
    with pytest.raises(HuggingFaceError, match=r"norm.weight: shape \(3,\)"):
        export_hugging_face(weights, LLAMA, tmp_path)
    assert not (tmp_path / "config.json").exists()


def test_a_weight_of_whole_numbers_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(HuggingFaceError, match=r"model\.norm\.weight: whole numbers of 8 bits"):
        list(import_hugging_face(folder)[1])


@pytest.mark.parametrize(
    "odd",
    [
        ModelConfig(family=Family.VIT),
        ModelConfig(experts=4, attention_bias=AttentionBias.ALL),
        ModelConfig(query_key_norm=True, attention_bias=AttentionBias.INPUTS),
        ModelConfig(experts=4, query_key_norm=True, shared_experts=1),
        ModelConfig(family=Family.GPT2),
    ],
)
def test_a_model_without_a_layout_there_is_refused(odd: ModelConfig, tmp_path: Path) -> None:
    with pytest.raises(HuggingFaceError, match="there"):
        export_hugging_face({}, odd, tmp_path)


def test_weights_in_a_pickle_are_refused_with_what_to_do(tmp_path: Path) -> None:
    export_hugging_face(dict(built(LLAMA).named_parameters()), LLAMA, tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(HuggingFaceError, match=r"pytorch_model\.bin.*save_pretrained"):
        import_hugging_face(tmp_path)


def test_of_two_tensors_of_one_name_the_index_says_which_is_read(tmp_path: Path) -> None:
    model = built(LLAMA)
    weights = dict(model.named_parameters())
    export_hugging_face(weights, LLAMA, tmp_path, max_file_bytes=20_000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    name = min(index)
    for file in {*index.values()} - {index[name]}:
        kept = load_file(tmp_path / file)
        wrong = torch.zeros_like(load_file(tmp_path / index[name])[name])
        save_file({**kept, name: wrong}, tmp_path / file)
    again = dict(imported(tmp_path).named_parameters())
    assert all(torch.equal(weights[key], again[key]) for key in weights)


def test_a_single_file_beside_an_index_is_read_as_in_transformers(tmp_path: Path) -> None:
    weights = dict(built(LLAMA).named_parameters())
    export_hugging_face(weights, LLAMA, tmp_path)
    doubled = {name: 2 * weight.detach() for name, weight in weights.items()}
    export_hugging_face(doubled, LLAMA, tmp_path / "parts", max_file_bytes=20_000)
    for file in (tmp_path / "parts").glob("model*"):
        file.rename(tmp_path / file.name)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path).get_input_embeddings().weight
    ours = dict(imported(tmp_path).named_parameters())
    assert torch.equal(ours["embedding.weight"], theirs)
    assert all(torch.equal(weights[name], ours[name]) for name in weights)


@pytest.mark.parametrize("sizes", [(20_000, 1 << 30), (1 << 30, 20_000)])
def test_a_second_export_into_a_folder_replaces_the_weights_of_the_first(
    tmp_path: Path, sizes: tuple[int, int]
) -> None:
    weights = {name: weight.detach() for name, weight in built(LLAMA).named_parameters()}
    for factor, size in zip((1, 2), sizes, strict=True):
        scaled = {name: factor * weight for name, weight in weights.items()}
        export_hugging_face(scaled, LLAMA, tmp_path, max_file_bytes=size)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path).get_input_embeddings().weight
    assert torch.equal(theirs, 2 * weights["embedding.weight"])
    ours = dict(imported(tmp_path).named_parameters())
    assert all(torch.equal(2 * weights[name], ours[name]) for name in weights)


@pytest.mark.parametrize("rows", [257, 1], ids=["every row", "one row"])
def test_a_head_that_is_not_the_embedding_is_kept_as_transformers_keeps_it(
    folder: Path, rows: int
) -> None:
    """config.json says that they are tied; the head was learned apart."""
    weights = load_file(folder / "model.safetensors")
    head = weights["model.embed_tokens.weight"].clone()
    head[:rows] += 0.5
    save_file({**weights, "lm_head.weight": head}, folder / "model.safetensors", {"format": "pt"})
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ours = imported(folder)
    assert not ours.config.tied_embeddings
    torch.testing.assert_close(ours(TOKENS_BS), theirs(TOKENS_BS).logits, rtol=1e-4, atol=1e-5)
    apart = replace(LLAMA, tied_embeddings=False)
    slices = slices_of(build_on_meta(apart).to_empty(device="cpu"))
    assert not load_hugging_face(folder, slices, config=apart)
    (loaded,) = (part.tensor for part in slices if part.name == "output.weight")
    assert torch.equal(loaded, head)
    with pytest.raises(HuggingFaceError, match=r"set model\.tied_embeddings to false"):
        load_hugging_face(folder, [], config=LLAMA)


def test_a_head_that_is_the_embedding_is_one_with_it(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    head = weights["model.embed_tokens.weight"].clone()
    save_file({**weights, "lm_head.weight": head}, folder / "model.safetensors", {"format": "pt"})
    assert imported(folder).config.tied_embeddings
    assert not load_hugging_face(folder, [], config=LLAMA)


@pytest.mark.parametrize("shards", [1, 3])
def test_a_run_of_a_folder_keeps_a_head_that_was_learned_apart(folder: Path, shards: int) -> None:
    def tied(**model: Any) -> bool:
        raw = with_model_of_folder({"model_from": str(folder), "model": model})
        return raw["model"]["tied_embeddings"]

    weights = load_file(folder / "model.safetensors")
    assert tied()
    for changed_rows, expected in ((0, True), (1, False)):
        head = weights["model.embed_tokens.weight"].clone()
        head[-1:] += float(changed_rows)
        whole = {**weights, "lm_head.weight": head}
        if shards == 1:
            save_file(whole, folder / "model.safetensors", {"format": "pt"})
        else:
            (folder / "model.safetensors").unlink(missing_ok=True)
            places = {name: f"model-{n % shards}.safetensors" for n, name in enumerate(whole)}
            for file in set(places.values()):
                part = {name: whole[name] for name in whole if places[name] == file}
                save_file(part, folder / file, {"format": "pt"})
            index = json.dumps({"weight_map": places})
            (folder / "model.safetensors.index.json").write_text(index)
        assert tied() is expected
        assert tied(tied_embeddings=True)
