"""One `go build` for several programs, with a module proxy in a folder."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.cluster.cache import MissingToolError
from tools.cluster.go_modules import Compiled, Source, build, go_mod

pytestmark = pytest.mark.skipif(shutil.which("go") is None, reason="takes a Go toolchain")
MODULE = "example.test/tools/v2"


@pytest.fixture
def proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module with two programs that share a package, as `go mod download` asks for it."""
    folder = tmp_path / "proxy" / MODULE / "@v"
    folder.mkdir(parents=True)
    mod = f"module {MODULE}\n\ngo 1.21\n"
    (folder / "v2.1.0.info").write_text('{"Version": "v2.1.0"}')
    (folder / "v2.1.0.mod").write_text(mod)
    hello = 'package main\n\nimport "{0}/shared"\n\nfunc main() {{ println(shared.Text) }}\n'
    files = {
        "go.mod": mod,
        "shared/shared.go": 'package shared\n\nvar Text = "unset"\n',
        "main.go": hello.format(MODULE),
        "cmd/second/main.go": hello.format(MODULE),
        "cmd/broken/main.go": "package main\n\nfunc main() { nothing() }\n",
    }
    with zipfile.ZipFile(folder / "v2.1.0.zip", "w") as packed:
        for name, text in files.items():
            packed.writestr(f"{MODULE}@v2.1.0/{name}", text)
    monkeypatch.setenv("GOPROXY", f"file://{tmp_path / 'proxy'}")
    monkeypatch.setenv("GONOSUMDB", "*")
    monkeypatch.setenv("GOMODCACHE", str(tmp_path / "modules"))
    monkeypatch.setenv("GOTOOLCHAIN", "local")
    work = tmp_path / "work"
    work.mkdir()
    yield work
    for each in (tmp_path / "modules").rglob("*"):  # Go makes its cache read-only
        if each.is_dir():
            each.chmod(0o755)


def _source(package: str, ldflags: str = "") -> Source:
    return Source(module=MODULE, package=package, version="2.1.0", ldflags=ldflags)


def test_one_command_builds_programs_that_share_packages(proxy: Path) -> None:
    said: list[str] = []
    stamp = f"-X {MODULE}/shared.Text=stamped"
    sources = {"first": _source(MODULE, stamp), "second": _source(f"{MODULE}/cmd/second")}
    build(sources, proxy, say=said.append)
    for name in sources:
        answer = subprocess.run([proxy / name], capture_output=True, text=True, check=True)
        assert answer.stderr == "stamped\n"


def test_a_failed_build_shows_the_words_of_the_compiler(proxy: Path) -> None:
    with pytest.raises(MissingToolError, match="undefined: nothing"):
        build({"broken": _source(f"{MODULE}/cmd/broken")}, proxy, say=print)


def test_staging_modules_are_required_and_replaced_at_one_version() -> None:
    sources = [
        Source(module="k8s.io/kubernetes", package="k8s.io/kubernetes/cmd/a", version="1.36.3"),
        Source(module="k8s.io/kubernetes", package="k8s.io/kubernetes/cmd/b", version="1.36.3"),
        Source(module="helm.sh/helm/v4", package="helm.sh/helm/v4/cmd/helm", version="4.3.1"),
    ]
    text = go_mod(sources, staging=["k8s.io/api"])
    assert text.count("k8s.io/kubernetes v1.36.3") == 1
    assert "\thelm.sh/helm/v4 v4.3.1\n" in text
    assert "\tk8s.io/api v0.36.3\n" in text
    assert "replace k8s.io/api => k8s.io/api v0.36.3\n" in text


def test_progress_names_packages_and_the_time_left() -> None:
    def line(done: int) -> str:
        return Compiled(done=done, total=2310, seconds=100.0).line()

    assert line(100) == "compiled 100 of 2,310 packages"
    assert line(1155) == "compiled 1,155 of 2,310 packages, about 2 min left"
    assert line(2310) == "compiled 2,310 of 2,310 packages, linking"
