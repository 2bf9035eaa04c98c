"""Read the parts of a cluster file about node events, prices and recoveries."""

from __future__ import annotations

from drumline_simulator.cluster import Autoscaling, PoolTerms
from drumline_simulator.conditions.rates import FailureRates, SpotRates
from drumline_simulator.input.document import Section
from drumline_simulator.workload import Execution


def pool_terms(pool: Section) -> PoolTerms:
    """Return the price of a pool's nodes, and whether they always exist."""
    section = pool.section("autoscaling")
    scaling = None
    if section is not None:
        scaling = Autoscaling(
            boot_seconds=section.number("bootSeconds", least=1),
            boot_spread=section.number("bootSpread", 0.0),
            missing_share=_share(section, "missingShare"),
            retry_seconds=section.number("retrySeconds", 600.0, least=1),
            idle_seconds=section.number("idleSeconds", 600.0),
        )
        section.reject_unknown()
    return PoolTerms(
        price_per_gpu_hour=pool.number("pricePerGpuHour", 0.0),
        price_swing=_share(pool, "priceSwing"),
        autoscaling=scaling,
    )


def spot_rates(section: Section | None) -> SpotRates | None:
    """Return the reclaim rates of a pool's nodes, or None."""
    if section is None:
        return None
    rates = SpotRates(
        node_hours=section.number("nodeHours", least=0.01),
        notice_seconds=section.number("noticeSeconds", 120.0),
        away_seconds=section.number("awaySeconds", 900.0),
    )
    section.reject_unknown()
    return rates


def failure_rates(section: Section | None) -> FailureRates:
    """Return the failure rates. Without the section nothing fails.

    Raises:
        InvalidFileError: a value is invalid. The error names the line and the field.
    """
    if section is None:
        return FailureRates()
    process, hang = _share(section, "processShare"), _share(section, "hangShare")
    if process + hang > 1:
        raise section.error("hangShare", "the sum of hangShare and processShare must be at most 1")
    rates = FailureRates(
        gpu_hours=section.number("gpuHours", least=0.01),
        process_share=process,
        hang_share=hang,
        repair_seconds=section.number("repairSeconds", 3600.0, least=1),
    )
    section.reject_unknown()
    return rates


def execution_times(section: Section | None) -> Execution:
    """Return the times to save, restart and detect failures."""
    plain = Execution()
    if section is None:
        return plain
    execution = Execution(
        save_seconds=section.number("saveSeconds", plain.save_seconds),
        leave_seconds=section.number("leaveSeconds", plain.leave_seconds),
        checkpoint_seconds=section.number("checkpointSeconds", plain.checkpoint_seconds, least=1),
        restart_seconds=section.number("restartSeconds", plain.restart_seconds),
        settle_seconds=section.number("settleSeconds", plain.settle_seconds),
        period_seconds=section.number("periodSeconds", plain.period_seconds),
        start_seconds=section.number("startSeconds", plain.start_seconds),
        checkpoint_stall_seconds=section.number("checkpointStallSeconds", 0.0),
        snapshot_seconds=section.number("snapshotSeconds", 0.0) or None,
        snapshot_share=_share(section, "snapshotShare"),
        process_seconds=section.number("processSeconds", plain.process_seconds),
        hang_seconds=section.number("hangSeconds", plain.hang_seconds),
        repair_seconds=_optional(section, "repairSeconds"),
        broken_seconds=_optional(section, "brokenSeconds"),
    )
    section.reject_unknown()
    return execution


def _share(section: Section, name: str) -> float:
    share = section.number(name, 0.0)
    if share >= 1:
        raise section.error(name, f"must be below 1, got {share:g}")
    return share


def _optional(section: Section, name: str) -> float | None:
    return section.number(name) if section.has(name) else None
