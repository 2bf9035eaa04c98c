"""The peers' programs: built or found, with their versions, started for a turn and stopped."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from drumline.kube.errors import KubeError
from drumline.kube.kinds import JOBS, TRAINING_JOBS, Resource
from tests.integration.operator.kueue import program as kueue_program
from tests.kube import Kube
from tools.bench import load
from tools.bench.peers import objects
from tools.bench.peers.objects import Json, Made
from tools.bench.shapes import GPUS, NODES_PER_RACK, Shape
from tools.bench.stand import Stand
from tools.cluster import Cluster
from tools.cluster.binaries import KUBERNETES_VERSION
from tools.cluster.cache import MissingToolError, cache_dir
from tools.cluster.certificates import new_authority
from tools.cluster.control_plane import start_scheduler
from tools.cluster.go_modules import build_copy
from tools.cluster.model import ClusterError
from tools.cluster.ports import free_ports
from tools.cluster.process import Process, exited, find, kill, log_path, spawn, wait_until
from tools.cluster.rest import Api, ApiStatusError

NATIVE_GATES: Final = ",".join(
    f"{gate}=true"
    for gate in (
        "GenericWorkload",
        "GangScheduling",
        "TopologyAwareWorkloadScheduling",
        "WorkloadAwarePreemption",
    )
)
API_SERVER_FLAGS: Final = (
    f"--feature-gates={NATIVE_GATES}",
    "--runtime-config=scheduling.k8s.io/v1alpha2=true",
    # its finalizer would take a controller that only these gates start
    "--disable-admission-plugins=PodGroupProtection",
)
QPS: Final = 2000
"""Requests a second that every peer's client may send; as shipped they wait for 50 or more."""
FAILURES: Final = (load.StalledError, KubeError, ClusterError, ApiStatusError, OSError)
"""Errors that end one round. The next round follows."""
SETTLE_SECONDS: Final = 20.0
_LOG_CHARACTERS: Final = 1500
_HANG_SECONDS: Final = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Cluster, operator and folder of a peer's run.

    Attributes:
        cluster: the control plane of all sides.
        stand: our operator, a client and the watch of the pods.
        nodes: number of fake nodes.
        folder: scratch space.
    """

    cluster: Cluster
    stand: Stand
    nodes: int
    folder: Path

    @property
    def processes(self) -> dict[str, int]:
        """Process ids by name: the cluster's, with the peer of this turn, and our operator's."""
        found = {process.role: process.pid for process in find(self.cluster.folder)}
        operator = self.stand.operator.process
        return found if operator is None else {**found, "operator": operator.pid}


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the schedulers that take turns.

    Attributes:
        name: as printed.
        version: as printed.
        kinds: deleted after a turn, before the pods.
        objects: what it is given for a TrainingJob of the bench.
        install: creates its kinds and settings, once.
        running: its programs run until the block ends.
    """

    name: str
    version: str
    kinds: tuple[Resource, ...]
    objects: Callable[[Json], Made]
    install: Callable[[Field], None]
    running: Callable[[Field, Shape], AbstractAsyncContextManager[None]]


def drumline() -> Side:
    """This checkout."""
    here = Path(__file__).parents[3]
    return Side(
        name="Drumline",
        version=_commit(here),
        kinds=(TRAINING_JOBS,),
        objects=objects.drumline,
        install=lambda _: None,
        running=_drumline_running,
    )


@asynccontextmanager
async def _drumline_running(field: Field, _: Shape) -> AsyncGenerator[None]:
    await field.stand.start_operator()
    try:
        yield
    finally:
        await asyncio.to_thread(field.stand.operator.stop)


def native() -> Side:
    """kube-scheduler with its alpha gates."""
    return Side(
        name="native",
        version=KUBERNETES_VERSION,
        kinds=(objects.NATIVE_GROUPS,),
        objects=objects.native,
        install=lambda _: None,
        running=_native_running,
    )


@asynccontextmanager
async def _native_running(field: Field, _: Shape) -> AsyncGenerator[None]:
    kill(field.cluster.folder, role_prefix="kube-scheduler")
    start_scheduler(field.cluster.folder, gates=NATIVE_GATES)
    try:
        yield
    finally:
        kill(field.cluster.folder, role_prefix="kube-scheduler")
        start_scheduler(field.cluster.folder)


def kueue() -> Side:
    """Kueue from its Go module, with kube-scheduler and the Job controller.

    Raises:
        MissingToolError: it cannot be built.
    """
    kueue_program.ensure_kueue(say=print)
    return Side(
        name="Kueue",
        version=kueue_program.VERSION,
        kinds=(JOBS, objects.WORKLOADS),
        objects=objects.kueue,
        install=_install_kueue,
        running=_kueue_running,
    )


def install_kueue(cluster: Cluster, setting: Iterable[Json]) -> None:
    """Create Kueue's kinds and these objects of its kinds."""
    kube = Kube(cluster.kubeconfig)
    kueue_program.install_crds(kube, kueue_program.ensure_kueue(say=print))
    kube.close()
    create(cluster, setting, kinds=_KUEUE_KINDS)


_KUEUE_KINDS: Final = (
    objects.TOPOLOGIES,
    objects.FLAVORS,
    objects.KUEUE_PRIORITIES,
    objects.CLUSTER_QUEUES,
    objects.LOCAL_QUEUES,
)


def _install_kueue(field: Field) -> None:
    install_kueue(field.cluster, objects.kueue_setting(gpus=field.nodes * GPUS))


@asynccontextmanager
async def _kueue_running(field: Field, _: Shape) -> AsyncGenerator[None]:
    async with kueue_running(field.cluster, field.folder):
        yield


@asynccontextmanager
async def kueue_running(cluster: Cluster, folder: Path) -> AsyncGenerator[None]:
    """Run Kueue without webhooks until the block ends."""
    changes: Json = {
        "clientConnection": {"qps": QPS, "burst": 2 * QPS},
        "integrations": {"frameworks": ["batch/job"]},
    }
    try:
        await asyncio.to_thread(
            kueue_program.start_kueue,
            cluster,
            folder,
            authority=new_authority(),
            configuration=changes,
        )
        yield
    finally:
        kill(cluster.folder, role_prefix=kueue_program.ROLE)


def volcano(clones: Path) -> Side:
    """Volcano from a clone in `clones/volcano`.

    Raises:
        MissingToolError: the clone is missing or cannot be built.
    """
    clone = clones / "volcano"
    built = built_clone(clone, ("./cmd/scheduler", "./cmd/controller-manager"))
    return Side(
        name="Volcano",
        version=_commit(clone),
        kinds=(objects.VOLCANO_JOBS,),
        objects=objects.volcano,
        install=lambda field: _install_volcano(field, clone),
        running=lambda field, shape: _volcano_running(field, shape, built=built),
    )


def _install_volcano(field: Field, clone: Path) -> None:
    bases = clone / "config/crd"
    install_kinds(field.cluster, sorted(bases.rglob("bases/*.yaml")), probe=objects.HYPER_NODES)
    racks = {f"rack-{number // NODES_PER_RACK}" for number in range(field.nodes)}
    create(field.cluster, objects.hyper_nodes(sorted(racks)), kinds=(objects.HYPER_NODES,))


def volcano_configuration(*, preempts: bool, racks: bool) -> str:
    """Return the configuration as shipped, with what a shape needs besides."""
    # `enqueue` would hold a job back that a full queue has no idle resources for.
    actions = [*(["allocate", "preempt"] if preempts else ["enqueue", "allocate"]), "backfill"]
    first = [{"name": "priority"}, {"name": "gang", "enablePreemptable": False}]
    first += [{"name": "conformance"}]
    second: list[Json] = [{"name": "overcommit"}, {"name": "drf", "enablePreemptable": False}]
    second += [{"name": name} for name in ("predicates", "proportion", "nodeorder", "binpack")]
    if racks:
        second.append({"name": "network-topology-aware"})
    tiers = [{"plugins": first}, {"plugins": second}]
    return yaml.safe_dump({"actions": ", ".join(actions), "tiers": tiers})


@asynccontextmanager
async def _volcano_running(field: Field, shape: Shape, *, built: Path) -> AsyncGenerator[None]:
    configuration = field.folder / "volcano.yaml"
    racks = any(objects.gang_of(job).in_one_rack for job in shape.jobs())
    text = volcano_configuration(preempts=bool(shape.before()), racks=racks)
    configuration.write_text(text)
    common = [
        f"--kubeconfig={field.cluster.kubeconfig}",
        "--leader-elect=false",
        f"--kube-api-qps={QPS}",
        f"--kube-api-burst={2 * QPS}",
    ]
    commands = {
        "volcano/scheduler": [
            built / "scheduler",
            *common,
            f"--scheduler-conf={configuration}",
            "--cache-dumper=false",
        ],
        "volcano/controllers": [built / "controller-manager", *common],
    }
    async with _programs(field, commands):
        yield


def kai(clones: Path) -> Side:
    """KAI from a clone in `clones/kai`: its scheduler and its binder.

    Raises:
        MissingToolError: the clone is missing or cannot be built.
    """
    clone = clones / "kai"
    built = built_clone(clone, ("./cmd/scheduler", "./cmd/binder"))
    return Side(
        name="KAI",
        version=_commit(clone),
        kinds=(objects.KAI_GROUPS,),
        objects=objects.kai,
        install=lambda field: _install_kai(field, clone),
        running=lambda field, _: _kai_running(field, built=built),
    )


def _install_kai(field: Field, clone: Path) -> None:
    folder = clone / "deployments/kai-scheduler/crds"
    install_kinds(field.cluster, sorted(folder.glob("*.yaml")), probe=objects.KAI_QUEUES)
    unlimited = {"quota": -1, "limit": -1, "overQuotaWeight": 1}
    resources = {"gpu": unlimited, "cpu": unlimited, "memory": unlimited}
    levels = [{"nodeLabel": objects.RACK_LABEL}, {"nodeLabel": "kubernetes.io/hostname"}]
    setting = [
        objects.new(objects.KAI_TOPOLOGIES, "bench", spec={"levels": levels}),
        objects.new(objects.KAI_QUEUES, "all", spec={"resources": resources}),
        objects.new(
            objects.KAI_QUEUES, "bench", spec={"parentQueue": "all", "resources": resources}
        ),
    ]
    create(field.cluster, setting, kinds=(objects.KAI_TOPOLOGIES, objects.KAI_QUEUES))


@asynccontextmanager
async def _kai_running(field: Field, *, built: Path) -> AsyncGenerator[None]:
    ports = free_ports(5)
    common = [f"--qps={QPS}", f"--burst={2 * QPS}"]
    commands = {
        "kai/scheduler": [
            built / "scheduler",
            *common,
            f"--listen-address=127.0.0.1:{ports[0]}",
            f"--plugin-server-port={ports[1]}",
        ],
        "kai/binder": [
            built / "binder",
            *common,
            f"--metrics-bind-address=127.0.0.1:{ports[2]}",
            f"--health-probe-bind-address=127.0.0.1:{ports[3]}",
        ],
    }
    async with _programs(field, commands):
        yield


@asynccontextmanager
async def _programs(field: Field, commands: dict[str, list[Any]]) -> AsyncGenerator[None]:
    """Run programs until the block ends; they find the API server by KUBECONFIG."""
    folder = field.cluster.folder
    environment = {"KUBECONFIG": str(field.cluster.kubeconfig)}
    started: list[Process] = []
    try:
        for role, command in commands.items():
            started.append(spawn(command, folder=folder, role=role, env=environment))
        yield
    finally:
        for process in started:
            kill(folder, role_prefix=process.role)


@asynccontextmanager
async def watched(folder: Path) -> AsyncGenerator[None]:
    """Cancel the block if a program of the cluster in this folder ends meanwhile.

    Raises:
        ClusterError: a program ended; the message has the end of its log.
    """
    processes = find(folder)

    async def watch() -> None:
        while True:
            for process in processes:
                if exited(process):
                    log = log_path(folder, process.role).read_text(errors="replace")
                    raise ClusterError(f"{process.role} ended: {log[-_LOG_CHARACTERS:]}")
            await asyncio.sleep(1)

    try:
        async with asyncio.TaskGroup() as tasks:
            watcher = tasks.create_task(watch())
            yield
            watcher.cancel()
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


async def settled(field: Field) -> None:
    """Return once no process of the cluster is busy, or after 20 s."""
    pids = field.processes.values()
    await asyncio.gather(*(load.settled(pid, within_seconds=SETTLE_SECONDS) for pid in pids))


def built_clone(clone: Path, packages: tuple[str, ...]) -> Path:
    """Return the folder with the programs of a clone, built once for each of its commits.

    Raises:
        MissingToolError: the clone is missing or cannot be built.
    """
    if not (clone / "go.mod").exists():
        raise MissingToolError(f"{clone} is not a clone: set PEERS to a folder with {clone.name}")
    commit = _git(clone, "rev-parse", "HEAD")
    folder = cache_dir() / "bin" / f"{clone.name}-{commit[:12]}"
    for package in packages:
        target = folder / package.rpartition("/")[2]
        if not target.exists():
            print(f"building {package} of {clone}: minutes, once", flush=True)
            folder.mkdir(parents=True, exist_ok=True)
            staged = target.with_suffix(".new")
            build_copy(clone, package, staged)
            staged.rename(target)
    return folder


def install_kinds(cluster: Cluster, files: Iterable[Path], *, probe: Resource) -> None:
    """Create CRDs, and return once the kind `probe` is served."""
    crds = Resource(
        group="apiextensions.k8s.io",
        version="v1",
        plural="customresourcedefinitions",
        kind="CustomResourceDefinition",
        namespaced=False,
    )
    found = [
        document for path in files for document in yaml.safe_load_all(path.read_text()) if document
    ]
    create(cluster, found, kinds=(crds,))
    with Api(cluster.kubeconfig) as api:
        wait_until(
            lambda: api.answers(probe.path()),
            what=f"{probe.plural} served",
            timeout_seconds=_HANG_SECONDS,
            folder=cluster.folder,
        )


def create(cluster: Cluster, manifests: Iterable[Json], *, kinds: Iterable[Resource]) -> None:
    """Create objects of these kinds; one that exists is left."""
    by_kind = {(kind.api_version, kind.kind): kind for kind in kinds}
    with Api(cluster.kubeconfig) as api:
        for manifest in manifests:
            kind = by_kind[manifest["apiVersion"], manifest["kind"]]
            path = kind.path(namespace=manifest["metadata"].get("namespace"))
            try:
                api.request("POST", path, manifest)
            except ApiStatusError as error:
                if error.code != 409:
                    raise


def _commit(folder: Path) -> str:
    """A tag of a clone, with the distance from it and the commit."""
    return _git(folder, "describe", "--tags", "--always")


def _git(folder: Path, *command: str) -> str:
    done = subprocess.run(
        ["git", "-C", folder, *command], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()
