"""What the documents promise exists: commands, manifests, reasons, metrics, links."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from pydantic.alias_generators import to_camel

from drumline.controller.job_events import EventAction
from drumline.telemetry.archiver_metrics import ArchiverMetrics
from drumline.telemetry.metrics import Metrics
from drumline.telemetry.notifier_metrics import NotifierMetrics
from drumline_agent.api import prometheus as agent_metrics
from drumline_agent.base.events import AgentEvent
from drumline_api import base
from drumline_api.base import GROUP, VERSION
from drumline_api.conditions import ConditionType, DisruptionKind, Phase, Reason
from drumline_api.crds import DEFINITIONS
from drumline_api.load import parse
from drumline_api.trainingjob import RecoverySpec
from drumline_contract import FaultClass, RestoreTier
from drumline_scheduler.decisions import BlockReason
from tools.generate import chart_values, week_figures
from tools.generate.api_reference import FILE as REFERENCE
from tools.generate.api_reference import text as reference_text
from tools.generate.cli_reference import FILE as COMMANDS
from tools.generate.cli_reference import text as commands_text

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
TROUBLESHOOTING = (ROOT / "docs" / "troubleshooting.md").read_text()
MONITORING = (ROOT / "docs" / "monitoring.md").read_text()
MODELS = {definition.kind: definition.model for definition in DEFINITIONS}

FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
REGISTRIES = tuple(
    ".".join(labels)
    for labels in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("proxy", "golang", "org"),
        ("sum", "golang", "org"),
        ("docker", "io"),
        ("hub", "docker", "com"),
        ("gcr", "io"),
        ("ghcr", "io"),
        ("quay", "io"),
        ("nvcr", "io"),
        ("registry", "k8s", "io"),
        ("deb", "debian", "org"),
        ("download", "pytorch", "org"),
        ("registry", "npmjs", "org"),
    )
)
"""In parts, so that this file names none of them either."""
RELEASES = tuple(".".join(labels) for labels in (("dl", "k8s", "io"), ("get", "helm", "sh")))
RELEASES_FILE = "tools/cluster/binaries.py"
"""Asks the official releases of Kubernetes and Helm before it builds; no other file may."""


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def code_blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page; an indented block (in a list) loses its indent."""
    matches = re.findall(
        rf"^( *)```{language}\n(.*?)^ *```$", page.read_text(), flags=re.MULTILINE | re.DOTALL
    )
    return [re.sub(rf"^{indent}", "", body, flags=re.MULTILINE) for indent, body in matches]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


def check_values(values: dict[str, Any]) -> None:
    schema = json.loads((ROOT / "helm/drumline/values.schema.json").read_text())
    jsonschema.validate(values, schema)


def check_manifest(document: dict[str, Any]) -> None:
    assert document["apiVersion"] == f"{GROUP}/{VERSION}"
    model = MODELS[document["kind"]]
    parsed = parse(model, document).model_dump(by_alias=True, exclude_unset=True)
    assert parsed["spec"] == without_numbers_as_text(document["spec"], like=parsed["spec"])


def without_numbers_as_text(given: Any, *, like: Any) -> Any:
    """Amounts may be written as numbers and are text from then on."""
    if isinstance(given, dict):
        return {k: without_numbers_as_text(v, like=like.get(k, v)) for k, v in given.items()}
    if isinstance(given, list):
        pairs = zip(given, like, strict=True)
        return [without_numbers_as_text(item, like=other) for item, other in pairs]
    return str(given) if isinstance(like, str) and isinstance(given, int) else given


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_make_target_that_is_named_exists(page: Path) -> None:
    prose, *blocks = page.read_text(), *re.findall(FENCED, page.read_text())
    code = [*"\n".join(blocks).splitlines(), *re.findall(r"`([^`\n]+)`", re.sub(FENCED, "", prose))]
    named = [re.match(r"\s*(?:\w+=\w+ )*make ([a-z0-9 -]+)", line) for line in code]
    targets = {word for words in named if words for word in words[1].split()}
    assert targets <= make_targets(), targets - make_targets()


def test_the_readme_is_short_and_has_what_people_look_for() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 90
    assert len(re.findall(r"(?<!!)\[[^]]+\]\(", text)) <= 10
    first_screen = "\n".join(text.splitlines()[:20])
    assert "Status:" in first_screen
    assert "](docs/images/" in first_screen
    assert {"make demo", "make test", "make down"} <= set(re.findall(r"make [a-z]+", text))
    # pipx installs what the command needs: without its extra it has pydantic alone
    for install in ("pipx install '.[cli]'", "uv tool install '.[cli]'", "helm install"):
        assert install in text


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_manifest_is_one_of_our_kinds_with_known_fields_alone(page: Path) -> None:
    for block in code_blocks(page, "yaml"):
        for document in yaml.safe_load_all(block):
            if "kind" in document:
                check_manifest(document)
            else:
                check_values(document)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_values_for_argo_cd_are_the_chart_s(page: Path) -> None:
    for block in code_blocks(page, "yml"):
        for document in yaml.safe_load_all(block):
            if document.get("kind") == "Application":
                check_values(document["spec"]["source"]["helm"]["valuesObject"])


def test_the_first_job_is_the_example_it_names() -> None:
    (block,) = code_blocks(ROOT / "docs/laptop.md", "yaml")
    assert block == (ROOT / "examples" / "first-job.yaml").read_text()


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_file_that_is_named_exists(page: Path) -> None:
    text = page.read_text()
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    broken = [link for link in links if not (page.parent / link).exists()]
    named = re.findall(
        r"(?<!/)\b(?:examples|helm|docs|docker|operator|trainer|tests)/[\w./-]+\.(?:yaml|py|md|svg|Dockerfile)",
        text,
    )
    assert broken + [name for name in named if not (ROOT / name).exists()] == []


def first_column(page: str, heading: str) -> set[str]:
    """The words in backquotes in the first cells of all tables below a heading of a page."""
    section = page.split(f"\n## {heading}\n")[1].split("\n## ", maxsplit=1)[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| ")]
    return {word for cell in cells for word in re.findall(r"`(\w+)`", cell)}


def test_troubleshooting_has_every_reason_and_no_other() -> None:
    known = {*Reason, *BlockReason, "PriorityClassNotFound", "InvalidConfig", "ExceedsMemory"}
    listed = first_column(TROUBLESHOOTING, "When a job does not do what you want")
    assert {word for word in listed if word[0].isupper()} == {str(reason) for reason in known}


def test_every_reason_has_an_anchor_that_messages_can_link() -> None:
    anchors = re.findall(r'<a id="([a-z]+)"></a>', TROUBLESHOOTING)
    assert len(anchors) == len(set(anchors))
    assert {str(reason).lower() for reason in (*Reason, *BlockReason)} <= set(anchors)


def rows_below(heading: str) -> list[list[str]]:
    """The cells of the table below a heading of troubleshooting.md, without its head."""
    section = TROUBLESHOOTING.split(f"\n## {heading}\n")[1].split("\n##")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return rows[2:]


def quoted(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text))


def test_every_condition_is_listed_and_no_other() -> None:
    assert set().union(*(quoted(row[0]) for row in rows_below("Conditions"))) == set(ConditionType)


def test_every_event_is_listed_and_no_other() -> None:
    rows = {row[0].strip("`"): row for row in rows_below("Events")}
    assert set(rows) == set(EventAction)
    assert quoted(rows[EventAction.DISRUPT][2]) == set(DisruptionKind)


def test_jobs_page_has_every_phase() -> None:
    text = (ROOT / "docs" / "job-life.md").read_text()
    assert [
        phase for phase in Phase if not re.search(rf"^\|.*\b{phase}\b", text, re.MULTILINE)
    ] == []


def test_recovery_page_has_every_class_tier_and_field_with_its_default() -> None:
    text = (ROOT / "docs" / "recovery.md").read_text()
    rows = [f"| `{word}` |" for word in (*FaultClass, *RestoreTier)]
    for name, field in RecoverySpec.model_fields.items():
        default = "none" if field.default is None else field.default
        rows.append(f"| `recovery.{to_camel(name)}` | {default} |")
    assert [row for row in rows if row not in text] == []


def test_every_metric_of_the_operator_is_listed_and_no_other() -> None:
    helped = re.findall(r"^# HELP (drumline_\w+)", Metrics().render().decode(), re.MULTILINE)
    created = {name for name in helped if name.endswith("_created")}
    assert first_column(MONITORING, "Metrics of the operator") == set(helped) - created


def test_every_metric_of_notifier_and_archiver_is_listed_and_no_other() -> None:
    text = b"".join(metrics.render() for metrics in (NotifierMetrics(), ArchiverMetrics())).decode()
    helped = set(re.findall(r"^# HELP (drumline_\w+)", text, re.MULTILINE))
    created = {name for name in helped if name.endswith("_created")}
    assert first_column(MONITORING, "Metrics of the notifier and the archiver") == helped - created


def test_every_metric_of_the_ranks_is_listed_and_no_other() -> None:
    source = Path(agent_metrics.__file__).read_text()
    names = set(re.findall(r'_gauge\(\s*"(\w+)"', source))
    names |= set(re.findall(r"# TYPE drumline_trainer_(\w+)", source)) - {""}
    listed = first_column(MONITORING, "Metrics of the ranks")
    assert listed == {f"drumline_trainer_{name}" for name in names}


def test_every_log_event_that_is_named_exists() -> None:
    section = MONITORING.split("\n## Logs\n")[1].split("\n## ")[0]
    named = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", section))
    source = "\n".join(path.read_text() for path in (ROOT / "operator").rglob("*.py"))
    logged = set(re.findall(r'\blog\.\w+\(\s*"(\w+)"', source)) | set(AgentEvent)
    assert named <= logged, named - logged


def test_every_label_annotation_and_taint_is_listed() -> None:
    constants = {name: key for name, key in vars(base).items() if isinstance(key, str)}
    prefixes = ("LABEL_", "ANNOTATION_", "TAINT_")
    keys = {key for name, key in constants.items() if name.startswith(prefixes)}
    keys = {key for key in keys if key.startswith(f"{GROUP}/")}
    listed = set(re.findall(r"`([a-z-]+)`", (ROOT / "docs" / "labels.md").read_text()))
    assert {key.removeprefix(f"{GROUP}/") for key in keys} <= listed


def test_every_example_is_in_the_gallery() -> None:
    gallery = (ROOT / "examples" / "README.md").read_text()
    examples = {path.name for path in (ROOT / "examples").iterdir()} - {"README.md"}
    assert {name for name in examples if f"]({name})" not in gallery} == set()


def test_the_reference_is_what_the_models_say() -> None:
    assert (ROOT / REFERENCE).read_text() == reference_text(), "run `make generate`"


def test_the_commands_are_those_of_the_program() -> None:
    assert (ROOT / COMMANDS).read_text() == commands_text(), "run `make generate`"


def test_the_values_are_those_of_the_chart() -> None:
    assert chart_values.FILE.read_text() == chart_values.text(), "run `make generate`"
    assert chart_values.README.read_text() == chart_values.readme(), "run `make generate`"


def test_the_page_of_the_week_s_figures_is_generated() -> None:
    assert week_figures.FILE.read_text() == week_figures.text(), "run `make generate`"


def test_no_file_names_a_registry_and_one_file_the_official_releases() -> None:
    assert naming(REGISTRIES) == []
    assert naming(RELEASES) == [RELEASES_FILE]


def naming(hosts: Sequence[str]) -> list[str]:
    """Return the files of the repository that name one of these hosts."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    pattern = re.compile("|".join(re.escape(host) for host in hosts))
    result: list[str] = []
    for name in filter(None, listed.stdout.split("\0")):
        file = ROOT / name
        if file.is_file() and pattern.search(file.read_text(errors="replace")):
            result.append(name)
    return result


def test_every_page_has_its_place_in_the_site() -> None:
    """`make lint` builds it and checks its links."""
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert sorted(leaves(nav)) == sorted(pages)


def leaves(entry: Any) -> Iterator[str]:
    """The pages of a part of the navigation."""
    if isinstance(entry, str):
        yield entry
        return
    for below in entry if isinstance(entry, list) else entry.values():
        yield from leaves(below)
