"""What can be counted about the code's shape; `python -m tools.house [FOLDER]` prints it.

tests/unit/test_house.py holds the limits; the figures themselves stand in docs/architecture.md.
"""

from __future__ import annotations

import ast
import gc
import re
import statistics
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = {
    folder.name: folder
    for root in ("operator", "trainer")
    for folder in sorted((ROOT / root).glob("drumline*"))
}
VAGUE = frozenset(("one", "found", "told", "who", "others", "nobody", "those", "anew"))
"""Words that name nothing: a variable says gang, pod, node, stage."""
_VAGUE_WORD = re.compile(rf"\b_*(?:{'|'.join(sorted(VAGUE))})_*\b", re.IGNORECASE)
_COMMENT_OR_STRING = re.compile(
    r'''#[^\n]*|"""(?:\\.|[^\\])*?"""|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*[']''', re.DOTALL
)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def parsed(text: str) -> ast.Module:
    """Parse a file while the garbage collector rests: it takes three quarters of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        if enabled:
            gc.enable()


@dataclass(frozen=True)
class Module:
    """One file, parsed."""

    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        return parsed(self.text)

    @cached_property
    def text_lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def lines(self) -> int:
        return len(self.text_lines)

    def functions(self) -> Iterator[Function]:
        return (node for node in ast.walk(self.tree) if isinstance(node, Function))

    def classes(self) -> Iterator[ast.ClassDef]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef))

    def identifiers(self) -> Iterator[tuple[int, str]]:
        """Line and name of what this module names itself."""
        for node in ast.walk(self.tree):
            match node:
                case ast.Name(id=name, ctx=ast.Store(), lineno=line):
                    yield line, name
                case ast.arg(arg=name, lineno=line):
                    yield line, name
                case (
                    ast.FunctionDef(name=name, lineno=line)
                    | ast.AsyncFunctionDef(name=name, lineno=line)
                    | ast.ClassDef(name=name, lineno=line)
                ):
                    yield line, name
                case ast.Attribute(attr=name, ctx=ast.Store(), lineno=line):
                    yield line, name
                case _:
                    pass

    def imports_in_functions(self) -> set[int]:
        """Lines of the imports that only run when a function is called."""
        return {
            node.lineno
            for function in self.functions()
            for node in ast.walk(function)
            if isinstance(node, ast.Import | ast.ImportFrom)
        }

    def own_line_comments(self) -> int:
        with self.path.open("rb") as file:
            return sum(
                token.type == tokenize.COMMENT and token.line.lstrip().startswith("#")
                for token in tokenize.tokenize(file.readline)
            )


def modules(folder: Path) -> list[Module]:
    """All modules below a folder, or the one module."""
    paths = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]
    return [Module(path) for path in paths]


def code_lines(function: Function, module: Module) -> int:
    """Count the lines of a function, without its docstring and comment lines."""
    lines = module.text_lines[function.lineno - 1 : function.end_lineno]
    first = function.body[0]
    described = ast.get_docstring(function, clean=False) is not None
    documented = (first.end_lineno or first.lineno) - first.lineno + 1 if described else 0
    return sum(not line.lstrip().startswith("#") for line in lines) - documented


def parameters(function: Function) -> int:
    """How many a caller sees: without self, cls and `**`."""
    named = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return sum(argument.arg not in {"self", "cls"} for argument in named)


def methods(node: ast.ClassDef, *, public: bool = False) -> list[str]:
    """Names of a class's methods."""
    names = [child.name for child in node.body if isinstance(child, Function)]
    return [name for name in names if not (public and name.startswith("_"))]


def vague_identifiers(module: Module) -> list[tuple[int, str]]:
    """Line and name of each identifier that names nothing."""
    if not _VAGUE_WORD.search(_COMMENT_OR_STRING.sub("", module.text)):
        return []  # without a parse, which takes ten times as long
    return sorted(
        (line, name) for line, name in module.identifiers() if name.lower().strip("_") in VAGUE
    )


def repeated_classes(these: Sequence[Module]) -> dict[str, list[Path]]:
    """Names of classes that more than one module defines."""
    places: dict[str, list[Path]] = defaultdict(list)
    for module in these:
        for name in {node.name for node in module.tree.body if isinstance(node, ast.ClassDef)}:
            places[name].append(module.path)
    return {name: paths for name, paths in sorted(places.items()) if len(paths) > 1}


def figures(these: Sequence[Module]) -> dict[str, str]:
    """Every figure of a package, in words."""
    functions = [function for module in these for function in module.functions()]
    classes = [node for module in these for node in module.classes()]
    lengths = sorted(code_lines(each, module) for module in these for each in module.functions())
    lines = sum(module.lines for module in these)
    comments = sum(module.own_line_comments() for module in these)
    text = "\n".join(module.text for module in these)
    any_types = len(re.findall(r"\bAny\b", text))
    stems = Counter(m.path.name for m in these if not m.path.name.startswith("__"))
    vague = Counter(name for module in these for _, name in vague_identifiers(module))
    return {
        "files / lines": f"{len(these)} / {lines}",
        "file: median / p90 / max lines": _spread([module.lines for module in these]),
        "function: median / p90 / max lines": _spread(lengths),
        "functions above 60 lines": str(sum(lines > 60 for lines in lengths)),
        "own-line comments": f"{comments} ({100 * comments / lines:.1f} %)",
        "`Any` / `cast(`": f"{any_types} / {text.count('cast(')}",
        "functions with more than 6 parameters": str(sum(parameters(f) > 6 for f in functions)),
        "classes with more than 12 methods": str(sum(len(methods(c)) > 12 for c in classes)),
        "classes with more than 15 public methods": str(
            sum(len(methods(node, public=True)) > 15 for node in classes)
        ),
        "imports inside functions": str(sum(len(m.imports_in_functions()) for m in these)),
        "complexity above 10 / above 12": f"{_complex(these, 10)} / {_complex(these, 12)}",
        "class names defined more than once": str(len(repeated_classes(these))),
        "file names that repeat": str(sum(count > 1 for count in stems.values())),
        "identifiers that name nothing": f"{sum(vague.values())}",
        "`if TYPE_CHECKING`": str(text.count("if TYPE_CHECKING")),
    }


def _spread(values: list[int]) -> str:
    ordered = sorted(values)
    return f"{statistics.median(ordered):g} / {ordered[len(ordered) * 9 // 10]} / {ordered[-1]}"


def _complex(these: Sequence[Module], limit: int) -> int:
    """Functions whose McCabe complexity is above a limit, as ruff counts it."""
    command = [str(Path(sys.executable).with_name("ruff")), "check", "--isolated", "-q"]
    command += ["--select=C901", "--ignore-noqa", "--output-format=concise"]
    command += [f"--config=lint.mccabe.max-complexity={limit}", *(str(m.path) for m in these)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.count("C901")


def main(arguments: Sequence[str]) -> int:
    """Print the figures of both packages, or of a folder, as a Markdown table."""
    folders = {name: Path(name) for name in arguments} or PACKAGES
    columns = {name: figures(modules(folder)) for name, folder in folders.items()}
    print("| | " + " | ".join(columns) + " |\n|" + "---|" * (1 + len(columns)))
    for row in next(iter(columns.values())):
        print(f"| {row} | " + " | ".join(column[row] for column in columns.values()) + " |")
    both = [module for folder in folders.values() for module in modules(folder)]
    repeated = repeated_classes(both)
    print(f"\nclass names defined in more than one module, of both: {len(repeated)}")
    print("  " + ", ".join(f"{name} x{len(paths)}" for name, paths in repeated.items()))
    longest = sorted(
        ((code_lines(f, m), f.name, m.path.name) for m in both for f in m.functions()), reverse=True
    )
    print("longest: " + ", ".join(f"{file}:{name} {n}" for n, name, file in longest[:8]))
    largest = sorted(
        ((len(methods(c)), c.name, m.path.name) for m in both for c in m.classes()), reverse=True
    )
    print("largest: " + ", ".join(f"{file}:{name} {n}" for n, name, file in largest[:8]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
