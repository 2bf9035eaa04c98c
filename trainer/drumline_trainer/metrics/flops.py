"""Model FLOP utilization. No torch.

Convention (PaLM, Chowdhery et al. 2022, appendix B; causal): training costs per token
`6 · N + 6 · L · D · S` FLOPs, N the weights in matrix products (the output head counts, tied or
not; looking up an embedding does not), L layers, D hidden size, S sequence length. MFU divides the
achieved FLOP/s of a device by its dense bf16 peak, whatever the precision of the run; a device we
have no figure for has no MFU rather than a wrong one.
"""

from __future__ import annotations

from drumline_trainer.config import ModelConfig

PEAK_BF16_FLOPS: dict[str, float] = {
    "A100": 312e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "GH200": 989e12,
    "B200": 2250e12,
    "L4": 121e12,
    "L40S": 362e12,
}
"""Dense peaks of the vendor's data sheets."""


def matmul_weights(model: ModelConfig) -> int:
    """Weights that take part in matrix products."""
    key_value_size = model.kv_heads * (model.hidden_size // model.heads)
    attention = 2 * model.hidden_size * (model.hidden_size + key_value_size)
    feed_forward = 3 * model.hidden_size * model.ffn_size
    return model.layers * (attention + feed_forward) + model.vocab_size * model.hidden_size


def flops_per_token(model: ModelConfig, *, sequence_length: int) -> int:
    """Forward and backward, causal attention."""
    attention = 6 * model.layers * model.hidden_size * sequence_length
    return 6 * matmul_weights(model) + attention


def peak_flops(device_name: str) -> float | None:
    """Dense bf16 peak of the device with this marketing name; the longest known name wins."""
    words = f" {device_name.replace('-', ' ')} "
    known = [name for name in PEAK_BF16_FLOPS if f" {name} " in words]
    return PEAK_BF16_FLOPS[max(known, key=len)] if known else None


def mfu(tokens_per_second: float, *, flops: int, devices: int, peak: float | None) -> float | None:
    """Share of the devices' peak; `flops` per token. None on an unknown device."""
    return None if peak is None else tokens_per_second * flops / (devices * peak)
