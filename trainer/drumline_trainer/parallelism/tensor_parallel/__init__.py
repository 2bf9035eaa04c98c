"""Tensor and sequence parallelism (Megatron-LM): every layer's weights are cut over one axis."""
