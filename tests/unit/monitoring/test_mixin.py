"""The mixin is whole: what its library imports is in it, and it is what the chart has."""

from __future__ import annotations

import io
import json
import re
import tarfile

import yaml

from tools.monitoring import generate, mixin


def test_the_library_imports_what_is_there_and_leaves_nothing_out() -> None:
    files = mixin.files()
    imported = set(re.findall(r"import '([^']+)'", files["mixin.libsonnet"]))
    boards = {name for name in files if name.startswith("dashboards/")}
    assert imported == boards | {"alerts/alerts.json"}
    assert len(boards) == len(generate.BOARDS)
    rules = yaml.safe_load(files["prometheus_alerts.yaml"])
    assert json.loads(files["alerts/alerts.json"]) == rules
    assert len(rules["groups"]) == len(generate.GROUPS)


def test_the_archive_holds_them_and_is_the_same_each_time() -> None:
    body = mixin.archive()
    assert body == mixin.archive()
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        assert set(tar.getnames()) == {f"{mixin.FOLDER}/{name}" for name in mixin.files()}
