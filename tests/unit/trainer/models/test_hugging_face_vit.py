"""A vision transformer of `transformers`: what it computes, what it learns, what returns."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification, ViTModel

from drumline_contract.config import ConfigError, Family, ModelConfig, TrainerConfig
from drumline_contract.shapes.hugging_face import (
    HuggingFaceError,
    kind_of,
    read_json,
    to_ours,
    with_model_of_folder,
)
from drumline_trainer.adapters.base import initialize_base
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.hugging_face import (
    check_hugging_face,
    export_hugging_face,
    import_hugging_face,
    load_hugging_face,
)
from drumline_trainer.models.initialize import initialize
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import TensorSlice, named_weights, slices_of
from tests.unit.trainer.models.test_hugging_face_families import check_slices, imported

IMAGES = torch.randint(
    0, 256, (4, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)
CLASSES = torch.tensor([3, 0, 4, 1])
NAMES = ("ant", "bee", "cat", "dog", "elk")
PROCESSOR: dict[str, Any] = {
    "image_processor_type": "ViTImageProcessor",
    "do_resize": True,
    "size": {"height": 12, "width": 12},
    "resample": 2,
    "do_rescale": True,
    "rescale_factor": 0.00392156862745098,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


@pytest.fixture(autouse=True)
def _quiet() -> None:
    """Their progress bars and advice are for people."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


@pytest.fixture
def theirs() -> ViTForImageClassification:
    """With weights that are all different, norms and biases too, and large enough to matter."""
    config = ViTConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        layer_norm_eps=1e-3,  # large enough to show
        image_size=12,
        patch_size=4,
        id2label=dict(enumerate(NAMES)),
        label2id={name: number for number, name in enumerate(NAMES)},
    )
    torch.manual_seed(1)
    model = ViTForImageClassification(config)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return model.eval()


@pytest.fixture
def folder(theirs: ViTForImageClassification, tmp_path: Path) -> Path:
    """As it is published."""
    theirs.save_pretrained(tmp_path / "theirs")
    write(tmp_path / "theirs" / "preprocessor_config.json", PROCESSOR)
    return tmp_path / "theirs"


def write(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values))


def described(theirs: ViTForImageClassification) -> dict[str, Any]:
    return json.loads(theirs.config.to_json_string())


def scaled(images: Tensor) -> Tensor:
    return images.float() / 127.5 - 1


def three_losses(
    model: nn.Module, logits: Callable[[Tensor], Tensor], images: Tensor = IMAGES
) -> list[float]:
    # an epsilon far above rounding: of slopes near zero Adam else makes full steps either way
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-4, weight_decay=0)
    losses: list[float] = []
    for _ in range(3):
        loss = F.cross_entropy(logits(images), CLASSES)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_a_model_of_theirs_computes_and_learns_the_same_here(
    theirs: ViTForImageClassification, folder: Path
) -> None:
    ours = imported(folder)
    with torch.no_grad():
        ours_BK, theirs_BK = ours(IMAGES), theirs(scaled(IMAGES)).logits
    assert theirs_BK.std() > 0.1
    assert (ours_BK - theirs_BK).abs().max() <= 1e-4
    here = three_losses(ours, ours)
    there = three_losses(theirs, lambda images: theirs(scaled(images)).logits)
    assert here == pytest.approx(there, abs=1e-5)
    assert there[2] < there[0]


def test_a_model_of_theirs_goes_back_as_it_came(
    theirs: ViTForImageClassification, folder: Path, tmp_path: Path
) -> None:
    ours = imported(folder)
    export_hugging_face(dict(named_weights(ours)), ours.config, tmp_path / "back", like=folder)
    stored, back = (load_file(each / "model.safetensors") for each in (folder, tmp_path / "back"))
    assert stored.keys() == back.keys()
    assert all(torch.equal(tensor, back[name]) for name, tensor in stored.items())
    assert read_json(tmp_path / "back" / "preprocessor_config.json") == PROCESSOR
    again, loading = ViTForImageClassification.from_pretrained(
        tmp_path / "back", output_loading_info=True
    )
    assert not any(loading[f"{kind}_keys"] for kind in ("missing", "unexpected", "mismatched"))
    assert again.config.id2label == dict(enumerate(NAMES))
    assert torch.equal(again(scaled(IMAGES)).logits, theirs(scaled(IMAGES)).logits)


def test_a_model_of_ours_becomes_theirs_with_its_image_processor(
    folder: Path, tmp_path: Path
) -> None:
    ours = imported(folder)
    export_hugging_face(dict(named_weights(ours)), ours.config, tmp_path / "back")
    again = ViTForImageClassification.from_pretrained(tmp_path / "back")
    assert (again(scaled(IMAGES)).logits - ours(IMAGES)).abs().max() <= 1e-4
    assert again.config.id2label[4] == "LABEL_4"
    written = read_json(tmp_path / "back" / "preprocessor_config.json")
    assert written == {**PROCESSOR, "resample": 3}


def test_names_of_classes_are_as_many_as_the_model_knows(folder: Path, tmp_path: Path) -> None:
    """A head of another size is no longer that of the folder, and has none of its names."""
    ours = imported(folder)
    fewer = dict(named_weights(ours))
    fewer |= {name: fewer[name][:3] for name in ("output.weight", "output.bias")}
    export_hugging_face(fewer, replace(ours.config, classes=3), tmp_path / "back", like=folder)
    again = ViTForImageClassification.from_pretrained(tmp_path / "back")
    assert again.config.id2label == {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}
    assert torch.equal(again.classifier.bias, fewer["output.bias"])


def test_a_rank_fills_its_slices(folder: Path) -> None:
    check_slices(folder)


def test_a_run_takes_the_model_of_its_folder(folder: Path) -> None:
    config = TrainerConfig.from_dict(with_model_of_folder({"model_from": str(folder)}))
    assert config.model == ModelConfig(
        family=Family.VIT,
        class_token=True,
        layers=2,
        hidden_size=32,
        ffn_size=48,
        heads=4,
        kv_heads=4,
        norm_epsilon=1e-3,
        image_size=12,
        patch_size=4,
        classes=5,
    )
    assert config.tokens_per_sample == 10


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"hidden_act": "gelu_new"}, "hidden_act is 'gelu_new'; only 'gelu'"),
        ({"qkv_bias": False}, "qkv_bias is False; only True"),
        ({"image_size": [12, 16]}, r"image_size is \[12, 16\]; only squares"),
        ({"patch_size": 5}, "image_size 12 does not divide by 5"),
        ({"id2label": {"0": "ant", "2": "bee"}}, "id2label must name the classes from 0 on"),
        ({"id2label": ["ant"]}, "id2label must be an object"),
        ({"num_labels": 7}, "num_labels is 7, and id2label has 5 names"),
        ({"head_dim": 16}, "'head_dim' is 16, which vit is not known to have"),
    ],
)
def test_what_cannot_be_is_refused(
    theirs: ViTForImageClassification, changed: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(HuggingFaceError, match=sentence):
        to_ours({**described(theirs), **changed})


def test_sides_may_be_pairs_and_classes_a_number(theirs: ViTForImageClassification) -> None:
    raw = described(theirs)
    expected = to_ours(raw)
    assert to_ours({**raw, "image_size": [12, 12], "patch_size": [4, 4]}) == expected
    del raw["id2label"]
    assert to_ours({**raw, "num_labels": 5}) == expected
    assert to_ours(raw).classes == 2


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"image_mean": [0.485, 0.456, 0.406]}, r"image_mean is \[0.485, .*; only 0.5"),
        ({"image_std": [0.5, 0.5, 0.2]}, r"image_std is \[0.5, 0.5, 0.2\]; only 0.5"),
        ({"rescale_factor": 1.0}, "rescale_factor is 1.0; only 0.0039"),
        ({"do_normalize": False}, "do_normalize is False; only True"),
        ({"do_flip_channel_order": True}, "do_flip_channel_order is True; only False"),
        ({"do_grayscale": True}, "do_grayscale is True; only False"),
        ({"offset": True}, "offset is True; only False"),
        ({"size": {"height": 12, "width": 16}}, "size is .*, and config.json asks for an"),
        ({"size": 16}, "size is 16, and config.json asks for an image_size of 12"),
        ({"size": {"shortest_edge": 16}}, "size is .*, and config.json asks for an"),
        (
            {"do_center_crop": True, "crop_size": {"height": 8, "width": 8}},
            "crop_size is .* image_size of 12",
        ),
    ],
)
def test_pixels_of_another_scale_or_number_are_refused(
    folder: Path, changed: dict[str, Any], sentence: str
) -> None:
    write(folder / "preprocessor_config.json", {**PROCESSOR, **changed})
    with pytest.raises(HuggingFaceError, match=f"preprocessor_config.json: {sentence}"):
        import_hugging_face(folder)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"feature_extractor_type": "ViTFeatureExtractor", "size": 12, "resample": 2},
        {**PROCESSOR, "size": {"shortest_edge": 16}, "do_center_crop": True, "crop_size": 12},
    ],
)
def test_settings_of_earlier_versions_mean_the_same(folder: Path, values: dict[str, Any]) -> None:
    write(folder / "preprocessor_config.json", values)
    assert import_hugging_face(folder)[0].image_size == 12


def test_a_processor_of_another_type_must_say_how_it_scales(folder: Path) -> None:
    path = folder / "preprocessor_config.json"
    write(path, {"image_processor_type": "ConvNextImageProcessor", "size": 12})
    with pytest.raises(HuggingFaceError, match="do_rescale"):
        import_hugging_face(folder)
    write(path, {**PROCESSOR, "image_processor_type": "ConvNextImageProcessor"})
    assert import_hugging_face(folder)[0].classes == 5


def begun(folder: Path, config: ModelConfig) -> tuple[nn.Module, frozenset[str]]:
    """A run's model as it begins from the folder, and what of it the folder lacks."""
    model = build_on_meta(config).to_empty(device="cpu")
    initialize(model, seed=3)
    return model, load_hugging_face(folder, list(slices_of(model)), config=config)


def pictures(side: int) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.randint(0, 256, (4, 3, side, side), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("side", [12, 20, 8])
def test_a_run_may_have_other_classes_and_images(folder: Path, side: int) -> None:
    """A classifier of its own, and position embeddings as theirs are interpolated."""
    config = replace(to_ours(read_json(folder / "config.json")), classes=6, image_size=side)
    ours, absent = begun(folder, config)
    fresh = build_on_meta(config).to_empty(device="cpu")
    initialize(fresh, seed=3)
    assert absent == {"output.weight", "output.bias"}
    assert torch.equal(ours.output.weight, fresh.output.weight)
    theirs = ViTForImageClassification.from_pretrained(
        folder, num_labels=6, ignore_mismatched_sizes=True
    )
    theirs.classifier.load_state_dict(ours.output.state_dict())
    images = pictures(side)
    with torch.no_grad():
        theirs_BK = theirs(scaled(images), interpolate_pos_encoding=True).logits
    assert (ours(images) - theirs_BK).abs().max() <= 1e-4
    # a model of theirs of that size, which learns its own positions as ours does
    embeddings = theirs.vit.embeddings
    patches = torch.zeros(1, 1 + (side // 4) ** 2, 32)
    resized = embeddings.interpolate_pos_encoding(patches, side, side)
    embeddings.position_embeddings = nn.Parameter(resized.detach().clone())
    embeddings.image_size = embeddings.patch_embeddings.image_size = (side, side)
    here = three_losses(ours, ours, images)
    there = three_losses(theirs, lambda each: theirs(scaled(each)).logits, images)
    assert here == pytest.approx(there, abs=1e-5)


def test_a_rank_fills_its_slices_of_interpolated_positions(folder: Path) -> None:
    config = replace(to_ours(read_json(folder / "config.json")), image_size=16)
    whole = dict(named_weights(begun(folder, config)[0]))["position_embedding.weight"]
    box = Box(offsets=(3, 8), shape=(5, 16))
    part = TensorSlice(
        name="position_embedding.weight", shape=(17, 32), box=box, tensor=torch.empty(box.shape)
    )
    load_hugging_face(folder, [part], config=config)
    assert torch.equal(part.tensor, whole[3:8, 8:24])


def test_an_encoder_alone_is_begun_from(theirs: ViTForImageClassification, tmp_path: Path) -> None:
    """As it is published for fine-tuning: names without a prefix, a pooler, no classifier."""
    generator = torch.Generator().manual_seed(5)
    encoder = ViTModel(theirs.config)
    encoder.load_state_dict(theirs.vit.state_dict(), strict=False)
    with torch.no_grad():
        encoder.pooler.dense.weight.normal_(generator=generator)
    encoder.save_pretrained(tmp_path / "encoder")
    raw = {"model_from": str(tmp_path / "encoder")}
    with pytest.raises(HuggingFaceError, match="ViT"):
        with_model_of_folder(raw)
    config = TrainerConfig.from_dict(with_model_of_folder({**raw, "model": {"classes": 3}})).model
    check_hugging_face(tmp_path / "encoder", config)
    ours, absent = begun(tmp_path / "encoder", config)
    assert absent == {"output.weight", "output.bias"}
    theirs.classifier = nn.Linear(32, 3)
    theirs.classifier.load_state_dict(ours.output.state_dict())
    assert (ours(IMAGES) - theirs(scaled(IMAGES)).logits).abs().max() <= 1e-4


def test_adapters_lie_on_no_new_classifier(folder: Path) -> None:
    raw = {"model_from": str(folder), "model": {"classes": 3}, "lora": {}}
    config = TrainerConfig.from_dict(with_model_of_folder(raw))
    with pytest.raises(ConfigError, match="3 classes"):
        initialize_base([], [], config=config, device=None, progress=lambda: None)


def test_what_was_trained_otherwise_goes_out_so(folder: Path, tmp_path: Path) -> None:
    """With the classes of the data, and a processor for its images."""
    config = replace(to_ours(read_json(folder / "config.json")), classes=3, image_size=20)
    ours, _ = begun(folder, config)
    export_hugging_face(
        dict(named_weights(ours)),
        config,
        tmp_path / "out",
        like=folder,
        class_names=("ape", "bat"),
    )
    again = ViTForImageClassification.from_pretrained(tmp_path / "out")
    images = pictures(20)
    assert (again(scaled(images)).logits - ours(images)).abs().max() <= 1e-4
    assert again.config.id2label == {0: "ape", 1: "bat", 2: "LABEL_2"}
    assert again.config.label2id["bat"] == 1
    written = read_json(tmp_path / "out" / "preprocessor_config.json")
    assert written["size"] == {"height": 20, "width": 20}


def test_a_model_without_its_head_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    headless = {name: each for name, each in load_file(path).items() if "classifier" not in name}
    save_file(headless, path, metadata={"format": "pt"})
    with pytest.raises(HuggingFaceError, match=r"2 tensors.*classifier\.bias"):
        import_hugging_face(folder)


def test_only_a_model_with_a_class_token_has_a_layout_there() -> None:
    mean = ModelConfig(family=Family.VIT, kv_heads=4)
    with pytest.raises(HuggingFaceError, match="class_token"):
        kind_of(mean)
    # what a model of images does not read makes it no other
    token = replace(mean, class_token=True, vocab_size=9, tied_embeddings=False)
    assert kind_of(token).model_type == "vit"
    with pytest.raises(HuggingFaceError, match=r"kv_heads.*4.*2"):
        kind_of(replace(token, kv_heads=2))
