"""Which small faults a module can have: one changed node of its syntax tree each."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_SMALL = (ast.Constant, ast.Name, ast.Attribute, ast.UnaryOp)
_ATTRIBUTES = {"minimum": "maximum", "maximum": "minimum", "argmin": "argmax", "argmax": "argmin"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A module with one fault."""

    path: Path
    line: int
    function: str
    """Its qualified name: of the outermost, where one stands in another."""
    before: str
    after: str
    within: str
    """The first line of the statement around it, where `before` alone could be anywhere."""
    node: int
    """Which node of the tree, in the order of a walk."""
    fault: int
    """Which of the faults that this node can have."""

    def tree(self) -> ast.Module:
        """The module with the fault in it."""
        tree = ast.parse(_text(self.path))
        target = list(ast.walk(tree))[self.node]
        fault = list(_changed(target))[self.fault]
        if isinstance(target, ast.stmt | ast.expr):
            ast.copy_location(fault, target)
        _Swap(target, fault).visit(tree)
        return ast.fix_missing_locations(tree)

    @property
    def change(self) -> str:
        """What it is, without the line, which moves when the file changes."""
        where = f" in `{self.within}`" if self.within else ""
        return f"{self.path.stem}.{self.function}: {self.before} -> {self.after}{where}"


def mutants_of(path: Path) -> list[Mutant]:
    """Every mutant of a module, in the order of the text."""
    tree = ast.parse(_text(path))
    skipped = set(_skipped(tree))
    functions, around = _functions(tree), _around(tree)
    mutants = [
        Mutant(
            path=path,
            line=_line(node),
            function=functions[id(node)],
            before=before,
            after=after,
            within=_shown(around[id(node)]) if isinstance(node, _SMALL) else "",
            node=index,
            fault=count,
        )
        for index, node in enumerate(ast.walk(tree))
        if id(node) in functions and id(node) not in skipped
        for count, (before, after) in enumerate(_faults(node))
    ]
    return sorted(mutants, key=lambda mutant: (mutant.line, mutant.before, mutant.after))


@cache
def _text(path: Path) -> str:
    """Of a module, as it was when it was first asked for: it may be edited while mutants run."""
    return path.read_text()


def _skipped(tree: ast.Module) -> Iterator[int]:
    """Nodes whose change is none of behaviour: annotations, texts."""
    for node in ast.walk(tree):
        roots: list[ast.AST | None] = []
        if isinstance(node, ast.FunctionDef):
            roots = [node.returns, *node.decorator_list]
        elif isinstance(node, ast.arg | ast.AnnAssign):
            roots = [node.annotation]
        elif isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Assert | ast.Raise):
            roots = [node]
        elif isinstance(node, ast.ClassDef):
            roots = [*node.bases, *node.decorator_list, *(k.value for k in node.keywords)]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Rejection":
            roots = [node]  # what a rejection says is another question than whether it is one
        elif isinstance(node, ast.Subscript) and _is_type(node):
            roots = [node]
        for root in roots:
            if root is not None:
                yield from (id(inner) for inner in ast.walk(root))


def _is_type(node: ast.Subscript) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in {"list", "dict", "set", "tuple"}


def _functions(tree: ast.Module) -> dict[int, str]:
    """By node: the function whose body it stands in; constants and defaults are in none."""
    classes = [definition for definition in tree.body if isinstance(definition, ast.ClassDef)]
    owned = [("", tree.body), *((f"{definition.name}.", definition.body) for definition in classes)]
    return {
        id(inner): f"{prefix}{definition.name}"
        for prefix, body in owned
        for definition in body
        if isinstance(definition, ast.FunctionDef)
        for statement in definition.body
        for inner in ast.walk(statement)
    }


def _around(tree: ast.Module) -> dict[int, ast.stmt]:
    """By node: the innermost statement that it is a part of."""
    return {
        id(inner): statement
        for statement in ast.walk(tree)
        if isinstance(statement, ast.stmt)
        for inner in ast.walk(statement)
    }


def _line(node: ast.AST) -> int:
    return node.target.lineno if isinstance(node, ast.comprehension) else getattr(node, "lineno", 0)


def _faults(node: ast.AST) -> list[tuple[str, str]]:
    return [(_shown(node), _shown(fault)) for fault in _changed(node)]


def _shown(node: ast.AST) -> str:
    return ast.unparse(node).strip().partition("\n")[0]


def _changed(node: ast.AST) -> Iterator[ast.AST]:  # noqa: C901 - a table, one case per fault
    """The node with each fault it can have; always in the same order."""
    twin = copy.deepcopy(node)
    match twin:
        case ast.Compare() if type(twin.ops[0]) in _COMPARISONS:
            twin.ops[0] = _COMPARISONS[type(twin.ops[0])]()
            yield twin
        case ast.BinOp() | ast.AugAssign() if type(twin.op) in _ARITHMETIC:
            twin.op = _ARITHMETIC[type(twin.op)]()
            yield twin
        case ast.BoolOp():
            twin.op = ast.And() if isinstance(twin.op, ast.Or) else ast.Or()
            yield twin
        case ast.UnaryOp() if isinstance(twin.op, ast.Not | ast.USub):
            yield twin.operand
        case ast.If() | ast.IfExp() | ast.While():
            twin.test = ast.UnaryOp(op=ast.Not(), operand=twin.test)
            yield twin
        case ast.comprehension() if twin.ifs:
            twin.ifs = twin.ifs[1:]
            yield twin
        case ast.Constant() if isinstance(twin.value, bool):
            yield ast.Constant(value=not twin.value)
        case ast.Constant() if isinstance(twin.value, int):
            yield ast.Constant(value=twin.value + 1)
        case ast.Name() if twin.id in _NAMES:
            yield ast.Name(id=_NAMES[twin.id], ctx=ast.Load())
        case ast.Attribute() if twin.attr in _ATTRIBUTES:
            twin.attr = _ATTRIBUTES[twin.attr]
            yield twin
        case ast.Expr() if isinstance(twin.value, ast.Call):
            yield ast.Pass()
        case ast.Continue():
            yield ast.Break()
        case ast.Break():
            yield ast.Continue()
        case ast.Return() if twin.value is not None and not isinstance(twin.value, ast.Constant):
            yield ast.Return(value=ast.Constant(value=None))
        case ast.Call() if getattr(twin.func, "id", "") == "reversed" and len(twin.args) == 1:
            yield twin.args[0]
        case _:
            return


class _Swap(ast.NodeTransformer):
    def __init__(self, target: ast.AST, fault: ast.AST) -> None:
        self._target = target
        self._fault = fault

    def visit(self, node: ast.AST) -> ast.AST:
        return self._fault if node is self._target else super().visit(node)
