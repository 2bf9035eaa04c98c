"""Makes the agent's bundle: a CPython of its own with the agent in it, which runs in any image.

    python docker/bundle.py TARGET PACKAGE... --client PACKAGE [--root FOLDER]

It is the interpreter that runs this script, with its standard library, the shared libraries that
both need, the C library and its loader included, and the PACKAGE folders. With --root it is the
Python of the same version in the file system below that folder, of any architecture: nothing in it
is executed. The client is a package
of the agent, too, and lies once more in a folder of its own for the user's Python. Every ELF file
is changed (patchelf) to name the others by where a pod has them, BUNDLE_FOLDER: so it needs nothing
of the image it runs in, no C library, no Python and no shell. Standard library and patchelf only.
"""

from __future__ import annotations

import argparse
import compileall
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

BUNDLE_FOLDER = "/opt/drumline"
"""`drumline_contract.BUNDLE_FOLDER`: this script may run where that cannot be imported."""
CLIENT_FOLDER = "client"
"""`drumline_contract.CLIENT_FOLDER`, below BUNDLE_FOLDER."""
_LEFT_OUT = (
    *("__pycache__", "test", "tests", "idlelib", "tkinter", "turtledemo", "turtle.py", "lib2to3"),
    *("ensurepip", "distutils", "pydoc_data", "site-packages", "dist-packages", "config-*"),
    *("*.a", "sqlite3", "curses", "dbm", "venv", "xmlrpc", "wsgiref", "msilib"),
    "sitecustomize.py",  # Debian's is a link to a machine's own configuration
)
_EXTENSIONS_LEFT_OUT = re.compile(
    r"^(_test|_xx|xx|_tkinter|_curses|_dbm|_gdbm|_sqlite3|readline|nis|ossaudiodev|_crypt|_ctypes_test)"
)
_LOADER = re.compile(r"^ld-(linux|musl)")
_RESOLVED = re.compile(r"(?:=> )?(/\S+) \(0x[0-9a-f]+\)$")


class BundleError(Exception):
    """The bundle cannot be made here; says what is missing."""


@dataclass(frozen=True)
class Source:
    """The Python that is taken along.

    Attributes:
        program: the executable itself, behind all links.
        standard_library: its folder.
        root: the file system that it is part of; None: it runs here.
    """

    program: Path
    standard_library: Path
    root: Path | None


def build(
    target: Path,
    packages: Iterable[Path],
    *,
    client: Path,
    root: Path | None = None,
    patchelf: str | None = None,
) -> None:
    """Write the bundle to a new folder.

    Args:
        target: must not exist.
        packages: folders of Python packages; tests and caches are left out.
        client: the package that a user's Python, of any version, imports from CLIENT_FOLDER.
        root: of the file system with the Python to take; None: the interpreter of this script.
        patchelf: the program; by default the one beside this interpreter, or in PATH.

    Raises:
        BundleError: a program or a library is missing.
    """
    patchelf = patchelf or _patchelf()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    source = _here() if root is None else _in(root, version)
    libraries, modules = target / "lib", target / "lib" / version
    (target / "bin").mkdir(parents=True)
    python = target / "bin" / "python3"
    shutil.copy(source.program, python)
    shutil.copytree(source.standard_library, modules, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    dynamic = modules / "lib-dynload"
    for extension in dynamic.glob("*.so"):
        if _EXTENSIONS_LEFT_OUT.match(extension.name):
            extension.unlink()
    # Without bytecode: it would be of this version of Python.
    without_bytecode = shutil.ignore_patterns("__pycache__", ".*", "pyproject.toml")
    shutil.copytree(client, target / CLIENT_FOLDER / client.name, ignore=without_bytecode)
    for package in (*packages, client):
        # Beside the standard library: that folder is searched by every build of Python, also
        # isolated from its environment (-I).
        left_out = shutil.ignore_patterns("__pycache__", ".*", "pyproject.toml")
        shutil.copytree(package, modules / package.name, ignore=left_out)
    extensions = [
        source.standard_library / "lib-dynload" / each.name for each in dynamic.glob("*.so")
    ]
    needed = _libraries([source.program, *extensions], source=source, patchelf=patchelf)
    for name, library in needed.items():
        shutil.copy(library, libraries / name)
    loaders = [name for name in needed if _LOADER.match(name)]
    if not loaders:
        raise BundleError(f"{source.program} is linked statically: bring a dynamic CPython")
    # this machine's program may not know the format of another architecture
    strip = shutil.which("strip") if root is None else None
    _relocate(target, python=python, loader=loaders[0], patchelf=patchelf, strip=strip)
    compileall.compile_dir(
        modules,
        quiet=1,
        stripdir=str(target),
        prependdir=BUNDLE_FOLDER,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )


def _here() -> Source:
    """The real executable behind a virtual environment."""
    base = Path(getattr(sys, "_base_executable", sys.executable))
    return Source(base.resolve(), Path(sysconfig.get_path("stdlib")), root=None)


def _in(root: Path, version: str) -> Source:
    program, standard_library = root / "usr/bin" / version, root / "usr/lib" / version
    if not program.is_file():
        raise BundleError(f"{root} has no {version}, which is the version that runs this script")
    return Source(program, standard_library, root=root)


def _patchelf() -> str:
    beside = Path(sys.executable).with_name("patchelf")
    program = str(beside) if beside.exists() else shutil.which("patchelf")
    if program is None:
        raise BundleError("the command `patchelf` is missing: install the package patchelf")
    return program


def _libraries(files: Iterable[Path], *, source: Source, patchelf: str) -> dict[str, Path]:
    """Every shared library that these files need, by the name it is asked for."""
    if source.root is None:
        return {library.name: library for file in files for library in _needed(file)}
    todo, libraries = list(files), dict[str, Path]()
    interpreter = Path(_run(patchelf, "--print-interpreter", str(source.program)).strip())
    names = {interpreter.name}
    while names:
        for name in names:
            libraries[name] = _library(name, source.root)
        todo += [libraries[name] for name in names]
        asked = {
            name for file in todo for name in _run(patchelf, "--print-needed", str(file)).split()
        }
        todo, names = [], asked - libraries.keys()
    return libraries


def _library(name: str, root: Path) -> Path:
    places = sorted(root.glob(f"usr/lib/*-linux-*/{name}"))
    if not places:
        raise BundleError(f"{root} has no {name}")
    return places[0].resolve()


def _needed(file: Path) -> set[Path]:
    """The libraries of a file and theirs, under the names they are asked for."""
    listing = _run("ldd", str(file))
    missing = [line.strip() for line in listing.splitlines() if "not found" in line]
    if missing:
        raise BundleError(f"{file}: {missing[0]}")
    matches = (_RESOLVED.search(line.strip()) for line in listing.splitlines())
    return {Path(match[1]) for match in matches if match}


def _relocate(target: Path, *, python: Path, loader: str, patchelf: str, strip: str | None) -> None:
    """Have every file look for the others in BUNDLE_FOLDER.

    DT_RPATH and not DT_RUNPATH: LD_LIBRARY_PATH, which many images set, goes before the latter.
    """
    place = f"{BUNDLE_FOLDER}/lib"
    _run(patchelf, "--set-interpreter", f"{place}/{loader}", str(python))
    libraries = [
        library
        for library in (target / "lib").iterdir()
        # The C library is loaded by the time it is asked for, and neither bears to be changed.
        if library.is_file() and library.name != loader and not library.name.startswith("libc.")
    ]
    extensions = sorted((target / "lib").glob("python*/lib-dynload/*.so"))
    for file in [python, *libraries, *extensions]:
        file.chmod(0o755)
        if strip is not None:  # an interpreter built by hand carries 20 MB for debuggers
            _run(strip, "--strip-unneeded", str(file))
        _run(patchelf, "--force-rpath", "--set-rpath", place, str(file))


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise BundleError(f"the command `{command[0]}` is missing") from None
    if done.returncode != 0:
        raise BundleError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def main() -> int:
    """Make a bundle from the command line. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("target", type=Path)
    parser.add_argument("packages", type=Path, nargs="+")
    parser.add_argument("--client", type=Path, required=True)
    parser.add_argument("--root", type=Path, help="take the Python of this file system")
    arguments = parser.parse_args()
    try:
        build(arguments.target, arguments.packages, client=arguments.client, root=arguments.root)
    except BundleError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
