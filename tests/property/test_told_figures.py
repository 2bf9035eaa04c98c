"""Every figure that commands, page and metrics show is the same, and is what was put there.

A seed makes a small cluster (`told_clusters`), and the real operator writes statuses. An oracle
counts what the generator put where. Held GPUs of nodes, pools and queues, waiting times, GPU-hours
and the names of holders are compared with it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from drumline.lifecycle.model.timestamps import parse_timestamp
from drumline.overview.jobs import job_rows, lines, positions
from drumline.overview.nodes import node_rows
from drumline.overview.objects import ClusterObjects
from drumline.overview.pool_units import PoolUnits
from drumline.overview.queues import queue_rows, share_rows
from drumline.overview.rows import QueueRow, ShareRow
from drumline.overview.usage import usage_rows
from drumline.overview.why import why_card
from drumline.overview.workloads import workload_uses
from drumline.telemetry.metrics import Metrics
from drumline_cli.formatting import many as many_of
from drumline_cli.overview import tables
from drumline_cli.overview.read import from_documents
from drumline_console.top.screen import TopRows, render
from drumline_console.ui.pages import overview
from drumline_scheduler.decisions import Decisions
from tests.property.scale import ALL, many
from tests.property.told_clusters import GPUS, NOW, Json, ToldCluster, told_cluster, written
from tests.seeds import seed_of

CLUSTERS = many(20, 500)


@pytest.mark.timeout(3600)
async def test_every_figure_is_that_of_the_oracle() -> None:
    first = 0 if ALL else seed_of("TOLD_SEED") * CLUSTERS
    seen: Counter[str] = Counter()
    wrong: list[str] = []
    for seed in range(first, first + CLUSTERS):
        scene, metrics = told_cluster(seed), Metrics()
        decisions = await written(scene, metrics=metrics)
        shown_of = _Scene(scene=scene, metrics=metrics, decisions=decisions)
        for what, figure, shown in shown_of.figures():
            seen[what.partition(" ")[0]] += 1
            if figure != shown:
                wrong.append(f"seed {seed}: {what}: {shown}, and there are {figure}")
    print(f"{CLUSTERS} clusters from seed {first}: {sum(seen.values())} figures")
    assert not wrong, "\n".join(wrong)
    sections = ("node", "pool", "queue", "share", "job", "usage", "holders")
    assert all(seen[what] for what in sections)


@dataclass(frozen=True)
class _Scene:
    """Figures of one generated cluster."""

    scene: ToldCluster
    metrics: Metrics
    decisions: Decisions

    def figures(self) -> Iterator[tuple[str, object, object]]:
        """Yield each figure: its name, by the oracle, and as it is shown."""
        text = json.dumps({"kind": "List", "items": self.scene.objects}).encode()
        cluster = from_documents([text], as_of=NOW)
        yield from self._of_nodes(cluster)
        yield from self._of_pools(cluster)
        yield from self._of_queues(cluster)
        yield from self._of_jobs(cluster)
        yield from self._of_usage(cluster)

    def _of_nodes(self, cluster: ClusterObjects) -> Iterator[tuple[str, object, object]]:
        for row in node_rows(cluster):
            yield f"node {row.node}, free", self.scene.free[row.node], row.gpus - row.held_gpus
            yield f"node {row.node}, foreign", self.scene.foreign[row.node], row.foreign_gpus
            for job in row.jobs:
                places = self._status(job)["assignment"]["nodes"]
                yield f"node {row.node}, {job} is there", True, row.node in places

    def _of_pools(self, cluster: ClusterObjects) -> Iterator[tuple[str, object, object]]:
        page, top = overview(cluster), "\n".join(render(_top(cluster), width=400))
        for pool in self.scene.of("GpuPool"):
            name, status = pool["metadata"]["name"], pool["status"]
            nodes = [
                node["metadata"]["name"]
                for node in self.scene.of("Node")
                if node["metadata"]["labels"]["pool"] == name
            ]
            whole = GPUS * len(nodes)
            held = whole - sum(self.scene.free[node] for node in nodes)
            bar = re.search(rf"^{name} .* (\d+) of (\d+)\b", top, re.MULTILINE)
            assert bar is not None
            yield f"pool {name} in top", (held, whole), tuple(map(int, bar.groups()))
            yield f"pool {name} on the page", True, f"{held} of {whole} GPUs held" in page
            yield f"pool {name} in kubectl get", f"{held}/{whole}", status["gpus"]
            for kind, figure in (("used", held), ("total", whole)):
                gauge = self._gauge("drumline_pool_gpus", gpu_pool=name, kind=kind)
                yield f"pool {name}, metric {kind}", figure, gauge

    def _of_queues(self, cluster: ClusterObjects) -> Iterator[tuple[str, object, object]]:
        held, foreign = self._held(), self._foreign()
        page, top = overview(cluster), "\n".join(render(_top(cluster), width=400))
        shares = {row.queue: row for row in share_rows(cluster)}
        specs = {each["metadata"]["name"]: each["spec"] for each in self.scene.of("TrainingQueue")}
        stored = {
            each["metadata"]["name"]: each["status"] for each in self.scene.of("TrainingQueue")
        }
        for row in queue_rows(cluster):
            name, status = row.queue, stored[row.queue]
            runs = [job for job in self._jobs("Running") if job["spec"]["queue"] == name]
            yield f"queue {name}, running", len(runs), row.admitted_jobs
            yield f"queue {name}, running in kubectl get", len(runs), status["admittedJobs"]
            waits = [job for job in self._jobs("Pending") if job["spec"]["queue"] == name]
            yield f"queue {name}, waiting", len(waits), len(row.waiting)
            yield f"queue {name}, waiting in kubectl get", len(waits), status["pendingJobs"]
            asked = sum(job["spec"]["nodes"] * job["spec"]["gpusPerNode"] for job in waits)
            yield f"queue {name}, requested", asked, row.waiting_gpus
            open_pools = {each["gpuPool"] for each in specs[name]["quotas"]}
            for quota in row.quotas:
                key = name, quota.pool
                # A queue without quota in a pool pays for no pods there.
                pods = foreign[key] if quota.pool in open_pools else 0
                figure = held[key] + pods
                yield f"queue {name}, held of {quota.pool}", figure, quota.used_gpus
                yield f"queue {name}, foreign of {quota.pool}", pods, quota.foreign_gpus
                gauge = self._gauge(
                    "drumline_queue_gpus", queue=name, gpu_pool=quota.pool, kind="used"
                )
                if gauge is not None:  # the queue has quota there
                    yield f"queue {name}, metric of {quota.pool}", figure, gauge
            yield (
                f"queue {name} in share",
                sum(q.used_gpus for q in row.quotas),
                shares[name].used_gpus,
            )
            yield f"queue {name}, waiting in share", len(waits), shares[name].waiting_jobs
            yield from self._of_share(shares[name], row, specs[name])
            used, whole = (
                sum(quota.used_gpus for quota in row.quotas),
                sum(quota.nominal_gpus for quota in row.quotas),
            )
            bar = re.search(rf"^queue {name} .* (\d+) of (\d+)\b", top, re.MULTILINE)
            assert bar is not None
            yield f"queue {name} in top", (used, whole), tuple(map(int, bar.groups()))
            for quota in row.quotas:
                nominal = many_of(quota.nominal_gpus, "GPU")
                text = f"{quota.pool}: {quota.used_gpus} of {nominal} held"
                yield f"queue {name} on the page: {text}", True, text in page

    def _of_share(
        self, share: ShareRow, row: QueueRow, spec: Json
    ) -> Iterator[tuple[str, object, object]]:
        nominal = {quota["gpuPool"]: quota["nominalGpus"] for quota in spec["quotas"]}
        name, used = row.queue, {quota.pool: quota.used_gpus for quota in row.quotas}
        beyond = sum(max(0, gpus - nominal.get(pool, 0)) for pool, gpus in used.items())
        yield f"share of {name}, quota", sum(nominal.values()), share.nominal_gpus
        yield f"share of {name}, borrowed", beyond, share.borrowed_gpus
        yield f"share of {name}, parts", +Counter(used), {p.pool: p.gpus for p in share.parts}

    def _of_jobs(self, cluster: ClusterObjects) -> Iterator[tuple[str, object, object]]:
        places = positions(lines(cluster.jobs, cluster.priorities))
        rows = job_rows(cluster.jobs, now=NOW, places=places, units=PoolUnits(cluster.pools))
        named = {row.name: row for row in rows}
        yield "jobs in list", len(cluster.jobs), len(rows)
        for row in rows:
            key = f"{row.namespace}/{row.name}"
            began = self.scene.began_to_wait.get(key) if row.position else None
            yield f"job {key}, waits since", began, row.waits_since
            spec = next(job.spec for job in cluster.jobs if job.key == key)
            yield f"job {key}, GPUs in list", spec.nodes * spec.gpus_per_node, row.gpus
            held = row.gpus if row.phase == "Running" else None
            yield f"job {key}, metric", held, self._gauge_of_job(row.name)
        quotas = {
            queue["metadata"]["name"]: {quota["gpuPool"] for quota in queue["spec"]["quotas"]}
            for queue in self.scene.of("TrainingQueue")
        }
        for job in cluster.jobs:
            if job.status.phase != "Pending":
                continue
            card, own = why_card(cluster, job), quotas[job.spec.queue]
            queue = next(each for each in queue_rows(cluster) if each.queue == job.spec.queue)
            yield f"job {job.key}, line in why", len(queue.waiting), card.waiting_jobs
            yield f"job {job.key}, quotas in why", queue.quotas, card.quotas
            yield f"job {job.key}, before", sum(r.gpus for r in card.ahead), card.gpus_ahead
            pools = {job.spec.gpu_pool} & own if job.spec.gpu_pool else own
            for holder in card.holders:
                where = self._pools_of(holder.job)
                yield f"holders of {job.key}: {holder.job}", True, not where.isdisjoint(pools)
            for row in card.ahead:
                theirs = next(each for each in cluster.jobs if each.metadata.name == row.name)
                asked = theirs.spec.gpu_pool
                can = {asked} & own if asked else own
                yield f"job {job.key}, after {row.name}", True, not can.isdisjoint(pools)
                yield f"job {row.name}, its place", named[row.name].position, row.position
        for blocked in self.decisions.blocked:
            yield f"job {blocked.key} waits for itself", False, blocked.key in blocked.blockers
            yield f"job {blocked.key} is scene its own name", False, blocked.key in blocked.message

    def _of_usage(self, cluster: ClusterObjects) -> Iterator[tuple[str, object, object]]:
        expected: Counter[str] = Counter()
        for job in self.scene.of("TrainingJob"):
            account, spec = job["status"].get("gpuSeconds"), job["spec"]
            if account is not None:
                expected[spec["queue"]] += account.get("productive", 0)
            if job["status"]["phase"] == "Running":
                since = parse_timestamp(job["status"]["admittedAt"])
                gpus = spec["nodes"] * spec["gpusPerNode"]
                expected[spec["queue"]] += gpus * round(NOW - since)
        for pod in self._foreign_pods():
            queue = pod["metadata"]["labels"].get("drumline.dev/queue")
            if queue:
                expected[queue] += 3000 * _gpus(pod)
        rows = usage_rows(
            cluster.jobs, workloads=workload_uses(cluster), by=["queue"], since=None, now=NOW
        )
        shown = {row.by[0]: row.gpu_seconds for row in rows}
        yield "usage", dict(+expected), shown

    def _status(self, key: str) -> Json:
        name = key.partition("/")[2]
        jobs = self.scene.of("TrainingJob")
        return next(each["status"] for each in jobs if each["metadata"]["name"] == name)

    def _jobs(self, phase: str) -> list[Json]:
        return [job for job in self.scene.of("TrainingJob") if job["status"]["phase"] == phase]

    def _held(self) -> Counter[tuple[str, str]]:
        held: Counter[tuple[str, str]] = Counter()
        for job in self._jobs("Running"):
            spec, places = job["spec"], job["status"]["assignment"]
            held[spec["queue"], places["gpuPool"]] += len(places["nodes"]) * spec["gpusPerNode"]
        return held

    def _foreign_pods(self) -> list[Json]:
        pods = self.scene.of("Pod")
        return [pod for pod in pods if "drumline.dev/job" not in pod["metadata"]["labels"]]

    def _foreign(self) -> Counter[tuple[str, str]]:
        foreign: Counter[tuple[str, str]] = Counter()
        for pod in self._foreign_pods():
            queue = pod["metadata"]["labels"].get("drumline.dev/queue", "")
            foreign[queue, self._pool(pod["spec"]["nodeName"])] += _gpus(pod)
        return foreign

    def _pool(self, node: str) -> str:
        return node.rpartition("-")[0]

    def _pools_of(self, holder: str) -> set[str]:
        if holder.count("/") == 1:
            return {self._status(holder)["assignment"]["gpuPool"]}
        name = holder.rpartition("/")[2]
        pods = self._foreign_pods()
        (pod,) = (each for each in pods if each["metadata"]["name"] == name)
        return {self._pool(pod["spec"]["nodeName"])}

    def _gauge_of_job(self, name: str) -> float | None:
        samples = (
            sample
            for family in self.metrics.cluster.collect()
            for sample in family.samples
            if sample.name == "drumline_job_gpus" and sample.labels["training_job"] == name
        )
        return next((sample.value for sample in samples), None)

    def _gauge(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


def _gpus(pod: Json) -> int:
    (container,) = pod["spec"]["containers"]
    return int(container["resources"]["limits"]["nvidia.com/gpu"])


def _top(cluster: ClusterObjects) -> TopRows:
    places = positions(lines(cluster.jobs, cluster.priorities))
    return TopRows(
        as_of=NOW,
        jobs=job_rows(cluster.jobs, now=NOW, places=places),
        nodes=node_rows(cluster),
        queues=queue_rows(cluster),
    )


async def test_a_tenant_who_reads_jobs_alone_sees_the_same_gpus_and_no_quota() -> None:
    for seed in range(CLUSTERS):
        scene = told_cluster(seed)
        await written(scene, metrics=Metrics())
        text = json.dumps({"kind": "List", "items": scene.of("TrainingJob")}).encode()
        hidden = dict.fromkeys(("TrainingQueue", "GpuPool"), "is not readable by you")
        cluster = replace(from_documents([text], as_of=NOW), unread=hidden)
        expected: Counter[str] = Counter()
        for job in _runs(scene):
            places = job["status"]["assignment"]["nodes"]
            expected[job["spec"]["queue"]] += len(places) * job["spec"]["gpusPerNode"]
        rows, shares = queue_rows(cluster), share_rows(cluster)
        assert {row.queue for row in rows} == {row.queue for row in shares}
        assert all(row.absent for row in (*rows, *shares))
        assert +Counter({row.queue: int(row.used_gpus) for row in shares}) == +expected
        for table in (tables.queues(rows, now=NOW), tables.shares(shares, now=NOW)):
            assert not rows or "not readable by you" in table
            assert "of 0 GPUs" not in table
        screen = "\n".join(render(_top(cluster), width=400))
        assert screen.count(" of ?") == len(rows)


@pytest.mark.parametrize("kind", ["TrainingQueue", "GpuPool"])
async def test_metrics_show_jobs_whose_queue_or_pool_was_deleted(kind: str) -> None:
    """The alerts DrumlineQueueDeletedInUse and DrumlinePoolDeletedInUse compare these series."""
    scene = next(scene for scene in map(told_cluster, range(99)) if _runs(scene))
    job = _runs(scene)[0]
    queue, pool = job["spec"]["queue"], job["status"]["assignment"]["gpuPool"]
    gone = queue if kind == "TrainingQueue" else pool
    scene.objects = [
        each for each in scene.objects if (each["kind"], each["metadata"]["name"]) != (kind, gone)
    ]
    metrics = Metrics()
    await written(scene, metrics=metrics)
    samples = [sample for family in metrics.registry.collect() for sample in family.samples]

    def named(name: str, **labels: str) -> bool:
        return any(
            sample.name == name and labels.items() <= sample.labels.items() for sample in samples
        )

    name = job["metadata"]["name"]
    assert named("drumline_job_gpus", training_job=name, queue=queue)
    assert named("drumline_job_info", training_job=name, gpu_pool=pool)
    assert named("drumline_queue_gpus", queue=queue) == (kind == "GpuPool")
    assert named("drumline_pool_gpus", gpu_pool=pool) == (kind == "TrainingQueue")


def _runs(scene: ToldCluster) -> list[Json]:
    return [job for job in scene.of("TrainingJob") if job["status"]["phase"] == "Running"]
