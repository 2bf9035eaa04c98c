"""Makes the agent's bundle: a CPython of its own with the agent in it, which runs in any image.

    python docker/bundle.py TARGET PACKAGE... --client PACKAGE

It is the interpreter that runs this script, with its standard library, the shared libraries that
both need, the C library and its loader included, and the PACKAGE folders. The client is a package
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
from pathlib import Path

BUNDLE_FOLDER = "/opt/drumline"
"""`drumline_trainer.contract.BUNDLE_FOLDER`: this script may run where that cannot be imported."""
CLIENT_FOLDER = "client"
"""`drumline_trainer.contract.CLIENT_FOLDER`, below BUNDLE_FOLDER."""
_LEFT_OUT = (
    *("__pycache__", "test", "tests", "idlelib", "tkinter", "turtledemo", "turtle.py", "lib2to3"),
    *("ensurepip", "distutils", "pydoc_data", "site-packages", "dist-packages", "config-*"),
    *("*.a", "sqlite3", "curses", "dbm", "venv", "xmlrpc", "wsgiref", "msilib"),
)
_EXTENSIONS_LEFT_OUT = re.compile(
    r"^(_test|_xx|xx|_tkinter|_curses|_dbm|_gdbm|_sqlite3|readline|nis|ossaudiodev|_crypt|_ctypes_test)"
)
_LOADER = re.compile(r"^ld-(linux|musl)")
_RESOLVED = re.compile(r"(?:=> )?(/\S+) \(0x[0-9a-f]+\)$")


class BundleError(Exception):
    """The bundle cannot be made here; says what is missing."""


def build(
    target: Path, packages: Iterable[Path], *, client: Path, patchelf: str | None = None
) -> None:
    """Write the bundle to a new folder.

    Args:
        target: must not exist.
        packages: folders of Python packages; tests and caches are left out.
        client: the package that a user's Python, of any version, imports from CLIENT_FOLDER.
        patchelf: the program; by default the one beside this interpreter, or in PATH.

    Raises:
        BundleError: a program or a library is missing.
    """
    patchelf = patchelf or _patchelf()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    libraries, modules = target / "lib", target / "lib" / version
    (target / "bin").mkdir(parents=True)
    python = target / "bin" / "python3"
    shutil.copy(_interpreter(), python)
    shutil.copytree(
        sysconfig.get_path("stdlib"), modules, ignore=shutil.ignore_patterns(*_LEFT_OUT)
    )
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
    loader = _copy_libraries([_interpreter(), *dynamic.glob("*.so")], libraries)
    _relocate(target, python=python, loader=loader, patchelf=patchelf)
    compileall.compile_dir(
        modules,
        quiet=1,
        stripdir=str(target),
        prependdir=BUNDLE_FOLDER,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )


def _interpreter() -> Path:
    """The real executable behind a virtual environment."""
    base = Path(getattr(sys, "_base_executable", sys.executable))
    return base.resolve()


def _patchelf() -> str:
    beside = Path(sys.executable).with_name("patchelf")
    program = str(beside) if beside.exists() else shutil.which("patchelf")
    if program is None:
        raise BundleError("the command `patchelf` is missing: install the package patchelf")
    return program


def _copy_libraries(files: Iterable[Path], folder: Path) -> str:
    """Copy every shared library that these files need. Returns the loader's name."""
    needed: set[Path] = set()
    for file in files:
        needed |= _needed(file)
    for library in needed:
        shutil.copy(library, folder / library.name)
    loaders = [library.name for library in needed if _LOADER.match(library.name)]
    if not loaders:
        raise BundleError(f"{_interpreter()} is linked statically: bring a dynamic CPython")
    return loaders[0]


def _needed(file: Path) -> set[Path]:
    """The libraries of a file and theirs, under the names they are asked for."""
    listing = _run("ldd", str(file))
    missing = [line.strip() for line in listing.splitlines() if "not found" in line]
    if missing:
        raise BundleError(f"{file}: {missing[0]}")
    matches = (_RESOLVED.search(line.strip()) for line in listing.splitlines())
    return {Path(match[1]) for match in matches if match}


def _relocate(target: Path, *, python: Path, loader: str, patchelf: str) -> None:
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
    strip = shutil.which("strip")  # an interpreter built by hand carries 20 MB for debuggers
    for file in [python, *libraries, *extensions]:
        file.chmod(0o755)
        if strip is not None:
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
    arguments = parser.parse_args()
    try:
        build(arguments.target, arguments.packages, client=arguments.client)
    except BundleError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
