"""The section `hardware`: what the planner cannot see from inside a rank."""

from __future__ import annotations

from dataclasses import dataclass

from drumline_contract.config.bounds import Number, Ranks
from drumline_contract.config.errors import ConfigError, require_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareConfig:
    """Devices and network; in a job of the operator its GpuPool says it."""

    gpu: str | None = None
    """Model by the planner's table, for instance H100. None: by the device's own name."""
    network_gbps: Number = 400
    """Gigabits per second from each GPU to other nodes."""
    domain_gpus: Ranks | None = None
    """GPUs that reach each other without the network, such as the 72 of an NVL72. None: those of a
    node."""
    rack_gpus: Ranks | None = None
    """GPUs below one leaf of the network. None: the network is flat."""
    oversubscription: Number = 1
    """Times less bandwidth that a GPU has out of its rack than within it."""

    def __post_init__(self) -> None:
        """Validate. Raises ConfigError."""
        require_positive(
            {
                "hardware.network_gbps": self.network_gbps,
                "hardware.domain_gpus": self.domain_gpus or 1,
                "hardware.rack_gpus": self.rack_gpus or 1,
                "hardware.oversubscription": self.oversubscription,
            }
        )
        if self.rack_gpus is not None and self.rack_gpus < (self.domain_gpus or 1):
            raise ConfigError(
                f"hardware.rack_gpus: must be at least domain_gpus, {self.domain_gpus}, as a domain"
                f" lies within a rack; not {self.rack_gpus}"
            )
