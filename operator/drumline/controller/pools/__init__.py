"""GpuPools: node demands and placeholders for autoscalers, calibration, overlaps."""
