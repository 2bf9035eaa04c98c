"""What a training pod can say to a real Prometheus that scrapes it as the chart says."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.monitoring.prometheus import running
from tools.cluster.binaries import ensure_binaries
from tools.cluster.promtool import ensure_prometheus

CHART = Path(__file__).parents[3] / "helm/drumline"
OWN = 'drumline_trainer_rank_up{rank="0"} 1\n'
FORGED = """drumline_node_disrupted{node="gpu-7",kind="Hardware",confidence="certain"} 1
drumline_job_info{namespace="other",training_job="theirs",queue="q",user="u"} 1
drumline_trainer_step{namespace="other",training_job="theirs"} 7
"""
FLOOD = "".join(f'drumline_trainer_step{{rank="{rank}"}} 1\n' for rank in range(5000))
LONG = OWN + "# " + "x" * (2 << 20) + "\n"


@contextmanager
def pod(page: str) -> Generator[tuple[str, threading.Event]]:
    """A server on loopback that always says this; the event is set by the second scrape."""
    scrapes = threading.Semaphore(0)
    again = threading.Event()

    class Agent(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if scrapes.acquire(blocking=False):
                again.set()
            scrapes.release()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Agent) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}", again
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def training() -> dict[str, Any]:
    """The chart's scrape job of training pods."""
    helm = ensure_binaries(["helm"], say=print)["helm"]
    command = [helm, "template", "drumline", CHART, "--show-only=templates/metrics.yaml"]
    command += ["--set=imageRegistry=registry.example.com"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    (text,) = (
        entry["data"]["drumline.yml"]
        for entry in yaml.safe_load_all(done.stdout)
        if entry and entry["kind"] == "ConfigMap"
    )
    scrapes = yaml.safe_load(text)["scrape_configs"]
    return next(each for each in scrapes if each["job_name"] == "drumline-training")


def discovered(scrape: dict[str, Any], addresses: dict[str, str], file: Path) -> dict[str, Any]:
    """The scrape job with pods of these names and addresses, in a file."""
    targets = [
        {
            "targets": [address],
            "labels": {
                "__meta_kubernetes_namespace": "team",
                "__meta_kubernetes_pod_name": name,
                "__meta_kubernetes_pod_phase": "Running",
                "__meta_kubernetes_pod_container_port_name": "agent",
                "__meta_kubernetes_pod_label_drumline_dev_job": "mine",
            },
        }
        for name, address in addresses.items()
    ]
    file.write_text(json.dumps(targets))
    rest = {name: value for name, value in scrape.items() if name != "kubernetes_sd_configs"}
    return {**rest, "scrape_interval": "1s", "file_sd_configs": [{"files": [str(file)]}]}


def test_a_training_pod_speaks_for_itself_alone_and_not_without_end(
    training: dict[str, Any], tmp_path: Path
) -> None:
    if ensure_prometheus() is None:
        pytest.skip("Prometheus is not installed, and this is no Debian to take it from")
    with pod(OWN + FORGED) as forger, pod(FLOOD) as flood, pod(LONG) as long:
        pods = {"forger": forger, "flood": flood, "long": long}
        addresses = {name: address for name, (address, _) in pods.items()}
        scrape = discovered(training, addresses, tmp_path / "pods.json")
        with running(tmp_path / "prometheus", config={"scrape_configs": [scrape]}) as prometheus:
            for _, again in pods.values():
                assert again.wait(60), "not scraped twice"
            targets = prometheus.targets()
            at = time.time()
            series = prometheus.samples('{__name__=~"drumline_.*"}', seconds=600, at=at)
    health = {each["labels"]["pod"]: each["health"] for each in targets}
    assert health == {"forger": "up", "flood": "down", "long": "down"}
    assert {
        (
            each.labels["__name__"],
            each.labels["namespace"],
            each.labels["training_job"],
            each.labels["pod"],
        )
        for each in series
    } == {
        ("drumline_trainer_rank_up", "team", "mine", "forger"),
        ("drumline_trainer_step", "team", "mine", "forger"),
    }
