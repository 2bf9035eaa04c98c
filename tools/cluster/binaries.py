"""The Kubernetes binaries of a throwaway cluster: from a cache, a release, or Go modules.

Each binary lives in `<cache>/bin/<name>-<version>/<name>`, so a version bump never meets an old
file and two checkouts share one build. A build is atomic: it is written beside its place and
renamed, so Ctrl-C leaves no half binary behind.

KUBERNETES_MINOR chooses another minor of Kubernetes than the newest one, as in
`KUBERNETES_MINOR=1.34 make test PART=integration`; `make test-all WHAT=minors` takes each of them.

Official releases are downloaded where they can be reached (`downloads`). Whatever did not come is
built from Go modules (`go_modules`): programs that share packages by one command.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.cluster.cache import MissingToolError, cache_dir
from tools.cluster.downloads import Release, download, this_platform
from tools.cluster.go_modules import Source, build, module_source

KUBERNETES_VERSIONS = {"1.34": "1.34.4", "1.35": "1.35.4", "1.36": "1.36.3"}
"""The newest patch of each minor that the Go module proxy has, the newest minor last."""
ETCD_VERSION = "3.6.8"
KWOK_VERSION = "0.8.0"
KIND_VERSION = "0.33.0"
HELM_VERSION = "4.3.1"
HELM_UNITTEST_VERSION = "1.1.2"
KUBECONFORM_VERSION = "0.8.0"
VERSITYGW_VERSION = "1.8.0"

_FURTHER_SECONDS = 45
"""Build time of each further program in a shared build."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary(Source):
    """One program: its source, its official release, and how long a cold build takes."""

    name: str
    build_seconds: int
    """Alone, with empty caches, on two idle cores."""
    release: Release | None = None
    shares: bool = False
    """Whether it is built by one command with the others that share packages of k8s.io."""


def kubernetes_version(environment: Mapping[str, str]) -> str:
    """The version that KUBERNETES_MINOR asks for, the newest one where nothing does.

    Raises:
        MissingToolError: no such minor is known.
    """
    newest = list(KUBERNETES_VERSIONS)[-1]
    minor = environment.get("KUBERNETES_MINOR") or newest
    if minor not in KUBERNETES_VERSIONS:
        known = ", ".join(KUBERNETES_VERSIONS)
        raise MissingToolError(f"KUBERNETES_MINOR={minor}: known minors are {known}")
    return KUBERNETES_VERSIONS[minor]


KUBERNETES_VERSION = kubernetes_version(os.environ)


def _kubernetes_release(name: str) -> Release:
    url = f"https://dl.k8s.io/release/v{{version}}/bin/{{os}}/{{arch}}/{name}"
    return Release(url=url, checksums=f"{url}.sha256")


_ETCD = "https://github.com/etcd-io/etcd/releases/download/v{version}"
_ETCD_FOLDER = "etcd-v{version}-{os}-{arch}"
_HELM = "https://get.helm.sh/helm-v{version}-{os}-{arch}.tar.gz"
_KIND = "https://github.com/kubernetes-sigs/kind/releases/download/v{version}/kind-{os}-{arch}"


def _kubernetes(name: str, build_seconds: int) -> Binary:
    version = f"v{KUBERNETES_VERSION}"
    major, minor, _ = KUBERNETES_VERSION.split(".")
    stamp = {
        "gitVersion": version,
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
        "gitCommit": "0" * 40,
        "buildDate": "1970-01-01T00:00:00Z",
    }
    return Binary(
        name=name,
        module="k8s.io/kubernetes",
        package=f"k8s.io/kubernetes/cmd/{name}",
        version=KUBERNETES_VERSION,
        build_seconds=build_seconds,
        ldflags=" ".join(f"-X k8s.io/component-base/version.{k}={v}" for k, v in stamp.items()),
        release=_kubernetes_release(name),
        shares=True,
    )


CATALOGUE: dict[str, Binary] = {
    binary.name: binary
    for binary in (
        Binary(
            name="etcd",
            module="go.etcd.io/etcd/server/v3",
            package="go.etcd.io/etcd/server/v3",
            version=ETCD_VERSION,
            build_seconds=34,
            release=Release(
                url=f"{_ETCD}/{_ETCD_FOLDER}.tar.gz",
                checksums=f"{_ETCD}/SHA256SUMS",
                member=f"{_ETCD_FOLDER}/etcd",
            ),
            shares=True,
        ),
        _kubernetes("kube-apiserver", 190),
        _kubernetes("kube-controller-manager", 50),
        _kubernetes("kube-scheduler", 5),
        _kubernetes("kubelet", 15),
        _kubernetes("kubectl", 10),
        Binary(
            name="kwok",
            module="sigs.k8s.io/kwok",
            package="sigs.k8s.io/kwok/cmd/kwok",
            version=KWOK_VERSION,
            build_seconds=81,
        ),
        Binary(
            name="kind",
            module="sigs.k8s.io/kind",
            package="sigs.k8s.io/kind",
            version=KIND_VERSION,
            build_seconds=40,
            release=Release(url=_KIND, checksums=f"{_KIND}.sha256sum"),
        ),
        Binary(
            name="helm",
            module="helm.sh/helm/v4",
            package="helm.sh/helm/v4/cmd/helm",
            version=HELM_VERSION,
            build_seconds=130,
            ldflags=f"-X helm.sh/helm/v4/internal/version.version=v{HELM_VERSION}",
            release=Release(url=_HELM, checksums=f"{_HELM}.sha256sum", member="{os}-{arch}/helm"),
            # its own k8s.io modules are those of the newest minor
            shares=list(KUBERNETES_VERSIONS.values())[-1] == KUBERNETES_VERSION,
        ),
        # the chart's tests; a plugin of Helm that is also a program
        Binary(
            name="helm-unittest",
            module="github.com/helm-unittest/helm-unittest",
            package="github.com/helm-unittest/helm-unittest/cmd/helm-unittest",
            version=HELM_UNITTEST_VERSION,
            build_seconds=60,
            replaces="github.com/vmware-labs/yaml-jsonpath v0.3.2"
            " => github.com/helm-unittest/yaml-jsonpath v0.4.0",
        ),
        Binary(
            name="kubeconform",
            module="github.com/yannh/kubeconform",
            package="github.com/yannh/kubeconform/cmd/kubeconform",
            version=KUBECONFORM_VERSION,
            build_seconds=10,
        ),
        # an S3 server whose objects are files of a folder: checkpoints in buckets are tested on it
        Binary(
            name="versitygw",
            module="github.com/versity/versitygw",
            package="github.com/versity/versitygw/cmd/versitygw",
            version=VERSITYGW_VERSION,
            build_seconds=60,
        ),
    )
}

MODULES: dict[str, tuple[str, str]] = {"jobset": ("sigs.k8s.io/jobset", "0.11.0")}
"""Go modules of which only files are needed (`module_source`), with their versions."""

CONTROL_PLANE: tuple[str, ...] = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
)


def binary_path(name: str) -> Path:
    """Where the binary `name` is, or will be once built."""
    binary = CATALOGUE[name]
    return cache_dir() / "bin" / f"{binary.name}-{binary.version}" / binary.name


def module_dir(name: str) -> Path:
    """The unpacked Go module of `name` (KWOK's stage files are read from there)."""
    binary = CATALOGUE[name]
    return module_source(binary.module, binary.version)


def missing(names: Iterable[str]) -> list[Binary]:
    """Return the programs that are not in the cache yet, in the order of their names."""
    return [CATALOGUE[name] for name in sorted(set(names)) if not binary_path(name).exists()]


def build_estimate_seconds(binaries: Iterable[Binary]) -> int:
    """Return how long a cold build of these programs takes on two idle cores.

    Programs that share packages take the time of the longest one. Each further one adds less.
    """
    known = list(binaries)
    shared = [binary.build_seconds for binary in known if binary.shares]
    alone = sum(binary.build_seconds for binary in known if not binary.shares)
    return alone + (max(shared) + _FURTHER_SECONDS * (len(shared) - 1) if shared else 0)


def ensure_binaries(names: Iterable[str], *, say: Say) -> dict[str, Path]:
    """Make these programs available: cached, downloaded, or built; return the path of each.

    Raises:
        MissingToolError: there is no Go toolchain and no way to install one, or a build failed.
    """
    wanted = list(names)
    with ExitStack() as locks:
        absent = missing(wanted)
        for binary in absent:
            locks.enter_context(_only_builder(binary))
        # another process may have built some meanwhile
        absent = [binary for binary in absent if not binary_path(binary.name).exists()]
        if absent:
            if CATALOGUE["kubectl"] in absent:
                _take_kubectl_of_this_machine(say=say)
            came = _download(missing(binary.name for binary in absent), say=say)
            _build([b for b in absent if b.name not in came], say=say)
    return {name: binary_path(name) for name in wanted}


def _take_kubectl_of_this_machine(*, say: Say) -> None:
    """Link to a kubectl of the machine within one minor: Kubernetes supports that skew."""
    own, place = shutil.which("kubectl"), binary_path("kubectl")
    if own is None:
        return
    told = subprocess.run(
        [own, "version", "--client"], check=False, capture_output=True, text=True
    ).stdout
    if kubectl_serves(told, version=KUBERNETES_VERSION):
        place.unlink(missing_ok=True)  # a link to an earlier kubectl that is gone
        place.symlink_to(own)
        say(f"  kubectl: {own} is within one minor of {KUBERNETES_VERSION}")


def kubectl_serves(told: str, *, version: str) -> bool:
    """Whether a kubectl may talk to an API server of this version.

    Args:
        told: the output of `kubectl version --client`.
        version: of the API server, as in `1.36.3`.
    """
    found = re.search(r"Client Version: v1\.(\d+)\.", told)
    return found is not None and abs(int(found[1]) - int(version.split(".")[1])) <= 1


def _download(binaries: Sequence[Binary], *, say: Say) -> set[str]:
    system, machine = this_platform()
    releases = {
        binary.name: (
            binary.release.filled(binary.version, system=system, machine=machine),
            binary_path(binary.name),
        )
        for binary in binaries
        if binary.release is not None
    }
    return download(releases, say=say)


def _build(binaries: Sequence[Binary], *, say: Say) -> None:
    """Build programs, those with shared packages by one command."""
    wanted = [binary for binary in binaries if not binary_path(binary.name).exists()]
    if not wanted:
        return
    minutes = max(1, round(build_estimate_seconds(wanted) / 60))
    listed = ", ".join(binary.name for binary in wanted)
    say(f"building {listed} from Go modules: about {minutes} min on two idle cores, once")
    shared = [binary for binary in wanted if binary.shares]
    groups = [shared] if shared else []
    groups += [[binary] for binary in wanted if not binary.shares]
    for group in groups:
        try:
            _build_group(group, say=say)
        except MissingToolError:
            if len(group) == 1:
                raise
            say("  not buildable as one module; each on its own now")
            for binary in group:
                _build_group([binary], say=say)


def _build_group(group: Sequence[Binary], *, say: Say) -> None:
    """Build programs by one command and move each to its place."""
    listed = ", ".join(f"{binary.name} {binary.version}" for binary in group)
    started = time.monotonic()
    sources = {binary.name: binary for binary in group}
    with tempfile.TemporaryDirectory(dir=binary_path(group[0].name).parent) as scratch:
        try:
            build(sources, Path(scratch), say=lambda line: say(f"  {line}"))
        except MissingToolError as error:
            raise MissingToolError(f"cannot build {listed}: {error}") from error
        for binary in group:
            (Path(scratch) / binary.name).rename(binary_path(binary.name))
    say(f"  built {listed} in {time.monotonic() - started:.0f} s")


@contextmanager
def _only_builder(binary: Binary) -> Iterator[None]:
    """Two checkouts that need the same binary build it once."""
    folder = binary_path(binary.name).parent
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(lock)


def prepare(names: Iterable[str]) -> None:
    """Build these binaries and download these modules: what needs them asks no network then.

    Raises:
        MissingToolError: as `ensure_binaries` and `module_source`.
    """
    wanted = list(names)
    ensure_binaries((name for name in wanted if name not in MODULES), say=print)
    for name in wanted:
        if name in MODULES:
            module_source(*MODULES[name])


if __name__ == "__main__":
    prepare(sys.argv[1:] or [*CATALOGUE, *MODULES])
