"""Structured logs: one JSON object a line in a cluster, a readable line on a terminal.

Events are snake_case constants with fields (`gang_placed`, job=..., nodes=...). The loggers of
Kopf and the standard library go through the same chain.
"""

from __future__ import annotations

import logging
import sys
from typing import cast

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor

from drumline_contract import plain, plain_lines


def configure(*, level: str, log_format: str) -> None:
    """Set up structlog and the standard library's root logger for this process."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.processors.format_exc_info,
    ]
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
        if log_format == "console"
        else structlog.processors.JSONRenderer()
    )
    # JSON escapes control characters. On a terminal, foreign text could write lines and colours.
    made_plain: list[Processor] = [_plain] if log_format == "console" else []
    threshold = logging.getLevelNamesMapping()[level.upper()]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *made_plain,
                renderer,
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=threshold, force=True)
    # Kopf logs each object at INFO; the operator logs what matters itself.
    logging.getLogger("kopf").setLevel(max(logging.WARNING, threshold))
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        cache_logger_on_first_use=True,
    )


def _plain(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Make the texts safe that the renderer prints as they are. It quotes all others."""
    event["event"] = plain(str(event["event"]))
    if "exception" in event:
        event["exception"] = plain_lines(str(event["exception"]))
    return event


def get(name: str) -> FilteringBoundLogger:
    """Return a logger whose `name` field is the package that it belongs to."""
    return cast("FilteringBoundLogger", structlog.stdlib.get_logger(name))
