"""Drumline as processes beside a real API server, scraped as the chart says.

The processes are outside the cluster, so each has a pod that stands for it: of a node that nobody
plays, with the labels and the port that the chart gives it, and the address where the process
listens. The scrape configuration is the chart's own, but for the discovery (`discovery`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tests.channel_servers import WebServer, web_server
from tests.integration.operator.conftest import a_claim
from tests.kube import Json, Kube
from tests.monitoring.discovery import PodDiscovery
from tests.monitoring.played_pods import PlayedPods
from tests.monitoring.prometheus import Prometheus, running
from tests.operator_process import ROOT, OperatorProcess, prepare
from tools.bench.stand import custom
from tools.cluster import Cluster, ClusterSpec, start, stop
from tools.cluster.binaries import ensure_binaries
from tools.cluster.kwok import create_fake_nodes
from tools.cluster.ports import free_ports

NAMESPACE: Final = "team"
SYSTEM: Final = "drumline-system"
POOL: Final = "h100"
SCRAPE_SECONDS: Final = 2
RULES: Final = ROOT / "helm/drumline/files/monitoring/alerts.yaml"
_NETWORKS: Final = 100
"""Agents listen where their pods are: each stage has a network of its own, from 127.100 on."""
_CHANNEL: Final = {"webhook": {"url": "https://example.com"}}
_VALUES: Final[Json] = {
    "networkPolicy": {"metricsFrom": [{"podSelector": {}}]},  # so there are series of jobs
    "archive": {"enabled": True, "url": "s3://any"},
    "notifications": {"enabled": True, "config": {"channels": {"any": _CHANNEL}}},
}


@dataclass(kw_only=True)
class Helper:
    """The notifier or the archiver as a process."""

    component: str
    environment: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; its log is appended."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "drumline", self.component],
                env={**os.environ, **self.environment},
                stdout=log,
                stderr=log,
            )

    def stop(self) -> None:
        """SIGTERM, and wait."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(timeout=90)
            self.process = None


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Everything that runs."""

    kube: Kube
    operator: OperatorProcess
    pods: PlayedPods
    prometheus: Prometheus
    channel: WebServer
    nodes: list[str]

    def submit(self, name: str, *, queue: str, **spec: Any) -> None:
        """Create a TrainingJob in the team's namespace."""
        self.kube.create(
            {
                "apiVersion": "drumline.dev/v1alpha1",
                "kind": "TrainingJob",
                "metadata": {"name": name, "namespace": NAMESPACE},
                "spec": {"queue": queue, **spec},
            }
        )


@contextmanager
def staged(folder: Path, *, rules: Path = RULES) -> Generator[Stage]:
    """All of it in `folder`, on a control plane of its own that is removed at the end.

    Args:
        folder: keeps the database of Prometheus and all logs.
        rules: the alerts that Prometheus evaluates.
    """
    folder.mkdir(parents=True, exist_ok=True)
    spec = ClusterSpec(
        name=f"drumline-monitoring-{os.getpid()}",
        nodes=0,
        kwok=True,
        fake_pods=f"127.{100 + os.getpid() % _NETWORKS}.0.1/16",
    )
    with ExitStack() as stack:
        stack.callback(stop, spec.name, say=print)
        cluster = start(spec, say=print)
        kube = Kube(cluster.kubeconfig)
        stack.callback(kube.close)
        prepare(kube)
        nodes = _furnish(kube, cluster)
        channel = stack.enter_context(web_server())
        operator_port, notifier_port, archiver_port = free_ports(3)
        chart = _chart()
        operator = OperatorProcess(
            kubeconfig=cluster.kubeconfig,
            folder=folder,
            http_port=operator_port,
            log_level="info",
            settings={
                "DRUMLINE_PROGRESS_SECONDS": "2",
                "DRUMLINE_PREEMPTION_SECONDS": "15",
                "DRUMLINE_JOB_METRICS": _job_metrics(chart),
            },
        )
        operator.start()
        stack.callback(_stop_operator, operator)
        helpers = _helpers(
            cluster, folder, channel=channel, notifier=notifier_port, archiver=archiver_port
        )
        for helper in helpers:
            helper.start()
            stack.callback(helper.stop)
        ports = {"operator": operator_port, "notifier": notifier_port, "archiver": archiver_port}
        for component, port in ports.items():
            _stand_in(kube, chart, component=component, port=port)
        pods = stack.enter_context(PlayedPods(Kube(cluster.kubeconfig), folder / "pods"))
        discovery = PodDiscovery(Kube(cluster.kubeconfig), folder)
        config = scrape_config(chart, discovery=discovery, rules=rules)
        stack.enter_context(discovery)
        prometheus = stack.enter_context(running(folder / "prometheus", config=config))
        yield Stage(
            kube=kube,
            operator=operator,
            pods=pods,
            prometheus=prometheus,
            channel=channel,
            nodes=nodes,
        )


def scrape_config(chart: list[Json], *, discovery: PodDiscovery, rules: Path) -> Json:
    """Prometheus' configuration: the chart's scrapes and our rules."""
    (text,) = (
        entry["data"]["drumline.yml"]
        for entry in chart
        if entry["kind"] == "ConfigMap" and "drumline.yml" in entry["data"]
    )
    scrapes = [discovery.translated(each) for each in yaml.safe_load(text)["scrape_configs"]]
    interval = f"{SCRAPE_SECONDS}s"
    times = {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": "2s"}
    return {"global": times, "rule_files": [str(rules)], "scrape_configs": scrapes}


def _chart() -> list[Json]:
    helm = ensure_binaries(["helm"], say=print)["helm"]
    chosen = [f"--set-json={key}={json.dumps(value)}" for key, value in _VALUES.items()]
    chosen.append("--set=imageRegistry=registry.example.com")
    done = subprocess.run(
        [helm, "template", "drumline", ROOT / "helm/drumline", f"--namespace={SYSTEM}", *chosen],
        check=True,
        capture_output=True,
        text=True,
    )
    return [entry for entry in yaml.safe_load_all(done.stdout) if entry]


def _job_metrics(chart: list[Json]) -> str:
    (value,) = (
        variable["value"]
        for entry in chart
        if entry["kind"] == "Deployment"
        for variable in entry["spec"]["template"]["spec"]["containers"][0]["env"]
        if variable["name"] == "DRUMLINE_JOB_METRICS"
    )
    return value


def _stand_in(kube: Kube, chart: list[Json], *, component: str, port: int) -> None:
    """A pod with what the chart's one is found by, at the address of the process."""
    (template,) = (
        entry["spec"]["template"]
        for entry in chart
        if entry["kind"] == "Deployment"
        and entry["metadata"]["labels"]["app.kubernetes.io/component"] == component
    )
    (endpoint,) = template["spec"]["containers"][0]["ports"]
    name = f"drumline-{component}-0"
    ports = [{"name": endpoint["name"], "containerPort": port}]
    container = {"name": component, "image": "any:1", "ports": ports}
    kube.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": SYSTEM,
                "labels": template["metadata"]["labels"],
            },
            "spec": {"nodeName": "unplayed", "containers": [container]},
        }
    )
    address = "127.0.0.1"
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
    kube.patch_status("pods", name, status, SYSTEM)


def _furnish(kube: Kube, cluster: Cluster) -> list[str]:
    """The team's namespace with its claim, a pool of 8 nodes, and a node for the stand-ins."""
    kube.ensure({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    kube.ensure(a_claim("checkpoints", namespace=NAMESPACE))
    nodes = create_fake_nodes(cluster.kubeconfig, count=8, nodes_per_rack=2)
    kube.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "unplayed"}})
    spec = {
        "nodeSelector": {"type": "kwok"},
        "topologyLevels": [{"name": "rack", "nodeLabel": "drumline.dev/rack"}],
        "capacity": {"pricePerGpuHour": "15"},
    }
    kube.create(custom("GpuPool", POOL, spec))
    return nodes


def _helpers(
    cluster: Cluster, folder: Path, *, channel: WebServer, notifier: int, archiver: int
) -> list[Helper]:
    shared = {
        "KUBECONFIG": str(cluster.kubeconfig),
        "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'trainer'}",
        "DRUMLINE_NAMESPACE": SYSTEM,
        "DRUMLINE_HTTP_HOST": "127.0.0.1",
    }
    channels = {"oncall": {"webhook": {"url": f"{channel.url}/events"}}}
    routes = [{"channels": ["oncall"]}]
    configuration = folder / "notifications.json"
    configuration.write_text(json.dumps({"channels": channels, "routes": routes}))
    archive = {"DRUMLINE_ARCHIVE": (folder / "archive").as_uri()}
    notifications = {"DRUMLINE_NOTIFICATIONS": str(configuration)}
    return [
        Helper(
            component=component,
            environment={**shared, **more, "DRUMLINE_HTTP_PORT": str(port)},
            log=folder / f"{component}.log",
        )
        for component, port, more in (
            ("notifier", notifier, notifications),
            ("archiver", archiver, archive),
        )
    ]


def _stop_operator(operator: OperatorProcess) -> None:
    if operator.process is not None:
        operator.stop()
