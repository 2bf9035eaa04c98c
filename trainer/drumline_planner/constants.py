"""The global constants of the time model: few, the same for every model, layout and cluster.

They were found on the measured iterations in data/vtrain_a100.csv and nowhere else
(tests/unit/trainer/planner/fitting.py); none belongs to a row. A pool's own measurements may
replace them (`calibration.calibrated`).
"""

from __future__ import annotations

from dataclasses import dataclass

from drumline_contract import StepPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Constants that no data sheet contains."""

    matmul: float = 0.92
    """Share of a device's sustained speed that a step's products reach when they are large."""
    half_width: float = 16.0
    """Features of a rank's products at which they reach half of that share."""
    passes: float = 2.42
    """Number of times that a layer's kept bytes go through memory in a forward pass."""
    kernel: float = 13e-6
    """Seconds between kernels, in addition to their work."""
    domain: float = 0.85
    """Share of a domain's line rate that collectives reach."""
    network: float = 0.95
    """Share of the network's line rate that collectives reach."""
    latency: float = 1.0
    """Latency of a collective's hop, relative to that of the link."""
    step: float = 0.002
    """Seconds of a step that no part explains."""

    def exposed(self, part: StepPart) -> float:
        """Return the correction factor of a part's seconds. 1 without a measurement."""
        del part
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConstants(Constants):
    """Constants for one pool, fitted to the step parts of its jobs (`calibration.calibrated`)."""

    parts: tuple[tuple[StepPart, float], ...] = ()
    """Correction factors of the exposed messages of an axis, beyond the other fields."""

    def exposed(self, part: StepPart) -> float:
        """Return the correction factor of this part."""
        return dict(self.parts).get(part, 1.0)


CALIBRATED = Constants()
