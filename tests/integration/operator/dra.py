"""An operator that allocates devices, with the rights that the chart gives it for that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.operator.chart_rights import token_of
from tests.integration.operator.proxy import Proxy
from tests.kube import Kube
from tests.operator_process import OperatorProcess


@contextmanager
def allocating_operator(api: Kube, folder: Path) -> Iterator[OperatorProcess]:
    """It is stopped at the end, and has asked for nothing that it may not do."""
    with (
        token_of(api, "drumline-operator", "dynamicResources.enabled=true") as token,
        Proxy(api.kubeconfig, folder, token=token) as proxy,
    ):
        operator = OperatorProcess(
            kubeconfig=proxy.kubeconfig,
            folder=folder,
            settings={"DRUMLINE_DYNAMIC_RESOURCES": "true"},
        )
        operator.start()
        try:
            yield operator
        finally:
            operator.stop()
        assert proxy.refused == []
