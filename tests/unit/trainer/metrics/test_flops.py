from __future__ import annotations

import pytest

from drumline_trainer.config import MODEL_PRESETS, ModelConfig
from drumline_trainer.metrics.flops import flops_per_token, matmul_weights, mfu, peak_flops
from drumline_trainer.models.llama import build_on_meta


@pytest.mark.parametrize("name", ["tiny", "llama-8b"])
def test_weights_in_products_are_all_but_norms_and_the_looked_up_embedding(name: str) -> None:
    config: ModelConfig = MODEL_PRESETS[name]
    model = build_on_meta(config)
    matrices = sum(p.numel() for p in model.parameters() if p.dim() > 1)
    looked_up = 0 if config.tied_embeddings else model.embedding.weight.numel()
    assert matmul_weights(config) == matrices - looked_up


def test_eight_billion_weights_cost_what_the_paper_says() -> None:
    per_token = flops_per_token(MODEL_PRESETS["llama-8b"], sequence_length=8192)
    assert per_token == 6 * matmul_weights(MODEL_PRESETS["llama-8b"]) + 6 * 32 * 4096 * 8192
    assert mfu(6700, flops=per_token, devices=1, peak=989e12) == pytest.approx(0.349, abs=0.01)


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-40GB", 312e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA GeForce RTX 4090", None),
        ("cpu", None),
    ],
)
def test_a_device_without_a_figure_has_no_peak(device: str, peak: float | None) -> None:
    assert peak_flops(device) == peak
    assert mfu(1.0, flops=1, devices=1, peak=None) is None
