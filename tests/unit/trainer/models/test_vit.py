from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from drumline_contract.config import Family, ModelConfig
from drumline_trainer.models.initialize import initialize
from drumline_trainer.models.vit import ViT

CONFIG = ModelConfig(
    family=Family.VIT, layers=1, hidden_size=16, ffn_size=24, image_size=12, patch_size=4, classes=5
)
IMAGES = torch.randint(
    0, 256, (2, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)


def built(config: ModelConfig = CONFIG) -> ViT:
    torch.manual_seed(0)
    model = ViT(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def test_patches_are_the_paper_s_convolution() -> None:
    model = built()
    projection = model.embedding.projection
    kernel = projection.weight.view(16, 3, 4, 4)
    pixels = IMAGES.float() / 127.5 - 1
    expected = F.conv2d(pixels, kernel, projection.bias, stride=4).flatten(2).transpose(1, 2)
    torch.testing.assert_close(model.embedding(IMAGES), expected, rtol=1e-4, atol=1e-5)


def test_the_class_follows_from_all_patches_in_both_directions() -> None:
    model = built()
    x = model.embedded(IMAGES)
    layer = model.layers["0"]
    seen = layer(x)
    x_changed = x.clone()
    x_changed[:, -1, 0] += 5
    assert (layer(x_changed)[:, 0] - seen[:, 0]).abs().max() > 1e-4  # the last patch is not hidden
    normed = F.layer_norm(seen, (16,), model.norm.weight, model.norm.bias)
    expected = normed.mean(1) @ model.output.weight.T + model.output.bias
    torch.testing.assert_close(model(IMAGES), expected, rtol=1e-4, atol=1e-5)


def test_a_layer_equals_torch_s_own_encoder_layer() -> None:
    layer = built().layers["0"]
    config = {"batch_first": True, "norm_first": True, "activation": "gelu", "dropout": 0.0}
    torchs = torch.nn.TransformerEncoderLayer(16, 4, 24, **config)
    # key and value heads serve two query heads each: torch's layer has one of each per head
    wide = [grouped(getattr(layer.attention, name)) for name in ("key", "value")]
    query = layer.attention.query
    torchs.load_state_dict(
        {
            "self_attn.in_proj_weight": torch.cat([query.weight, *(w for w, _ in wide)]),
            "self_attn.in_proj_bias": torch.cat([query.bias, *(b for _, b in wide)]),
            "self_attn.out_proj.weight": layer.attention.output.weight,
            "self_attn.out_proj.bias": layer.attention.output.bias,
            "linear1.weight": layer.feed_forward.up.weight,
            "linear1.bias": layer.feed_forward.up.bias,
            "linear2.weight": layer.feed_forward.down.weight,
            "linear2.bias": layer.feed_forward.down.bias,
            "norm1.weight": layer.attention_norm.weight,
            "norm1.bias": layer.attention_norm.bias,
            "norm2.weight": layer.feed_forward_norm.weight,
            "norm2.bias": layer.feed_forward_norm.bias,
        }
    )
    x = torch.randn(2, 9, 16)
    torch.testing.assert_close(layer(x), torchs(x), rtol=1e-4, atol=1e-5)


def plain(model: ViT, images: Tensor) -> Tensor:
    """The whole encoder by torch's own functions, with the same weights."""
    of = dict(model.named_parameters())

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, of[f"{name}.weight"], of[f"{name}.bias"])

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (16,), of[f"{name}.weight"], of[f"{name}.bias"])

    kernel = of["embedding.projection.weight"].view(16, 3, 4, 4)
    patches = F.conv2d(
        images.float() / 127.5 - 1, kernel, of["embedding.projection.bias"], stride=4
    )
    x_BSD = patches.flatten(2).transpose(1, 2)
    if model.config.class_token:
        x_BSD = torch.cat([of["embedding.class_token"].expand(len(x_BSD), 1, 16), x_BSD], dim=1)
    x_BSD = x_BSD + of["position_embedding.weight"]
    for number in range(model.config.layers):
        at = f"layers.{number}"
        attention = model.layers[str(number)].attention
        y_SBD = norm(x_BSD, f"{at}.attention_norm").transpose(0, 1)
        wide = [grouped(getattr(attention, name)) for name in ("key", "value")]
        mixed_SBD, _ = F.multi_head_attention_forward(
            *(y_SBD, y_SBD, y_SBD, 16, 4),
            torch.cat([attention.query.weight, *(weight for weight, _ in wide)]),
            torch.cat([attention.query.bias, *(bias for _, bias in wide)]),
            *(None, None, False, 0.0),
            attention.output.weight,
            attention.output.bias,
        )
        x_BSD = x_BSD + mixed_SBD.transpose(0, 1)
        y_BSD = F.gelu(linear(norm(x_BSD, f"{at}.feed_forward_norm"), f"{at}.feed_forward.up"))
        x_BSD = x_BSD + linear(y_BSD, f"{at}.feed_forward.down")
    x_BSD = norm(x_BSD, "norm")
    return linear(x_BSD[:, 0] if model.config.class_token else x_BSD.mean(1), "output")


@pytest.mark.parametrize("class_token", [False, True])
def test_logits_and_gradients_are_those_of_plain_torch(class_token: bool) -> None:
    config = replace(CONFIG, layers=2, class_token=class_token)
    model, targets = built(config), torch.tensor([1, 4])
    weights = list(model.parameters())
    ours, theirs = model(IMAGES), plain(model, IMAGES)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    gradients = (
        torch.autograd.grad(F.cross_entropy(logits, targets), weights) for logits in (ours, theirs)
    )
    for (name, _), mine, its in zip(model.named_parameters(), *gradients, strict=True):
        # softmax does not see what is added to all scores: a key's bias has a rounding error only
        allowed = 1e-6 if name.endswith("key.bias") else 1e-5 * float(its.abs().max())
        assert float((mine - its).abs().max()) <= allowed, name


def grouped(linear: torch.nn.Linear) -> tuple[Tensor, Tensor]:
    weight = linear.weight.view(2, 4, 16).repeat_interleave(2, dim=0).flatten(0, 1)
    return weight, linear.bias.view(2, 4).repeat_interleave(2, dim=0).flatten()


def test_pictures_are_told_apart_after_a_few_steps() -> None:
    model = ViT(CONFIG)
    initialize(model, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    targets = torch.tensor([1, 4])
    for _ in range(30):
        optimizer.zero_grad()
        F.cross_entropy(model(IMAGES), targets).backward()
        optimizer.step()
    assert model(IMAGES).argmax(-1).tolist() == [1, 4]
