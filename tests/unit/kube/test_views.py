"""What is kept of each object of a large cluster is what the operator reads."""

from __future__ import annotations

import ast

import msgspec
import pytest

from drumline.kube.views import ConditionView, ContainerView, EventView, NodeView, PodView
from drumline_api.objects import builtin
from tools.house import ROOT

OPERATOR = ROOT / "operator" / "drumline"
READERS = [OPERATOR / "kube" / "views.py", *(OPERATOR / "controller").rglob("*.py")]


@pytest.mark.parametrize(
    "view", [PodView, ContainerView, NodeView, builtin.Taint, ConditionView, EventView]
)
def test_every_field_is_read_by_name(view: type[msgspec.Struct]) -> None:
    read = {
        node.attr
        for path in READERS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    assert set(view.__struct_fields__) <= read
