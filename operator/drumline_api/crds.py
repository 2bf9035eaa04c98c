"""Write the three CustomResourceDefinitions from the models.

`python -m drumline_api.crds` writes one file per kind to `crds/` (for `kubectl apply`) and to the
chart. The chart templates them, so that `helm upgrade` also upgrades the CRDs. In the chart, a
policy contains the rules over a job's whole spec instead of the CRD (`spec_policy`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from drumline_api.base import GROUP, VERSION, ApiModel
from drumline_api.gpupool import GpuPool
from drumline_api.manifest_yaml import manifest_text, write_files
from drumline_api.schema import Schema, structural_schema, without_rules_of_the_spec
from drumline_api.spec_policy import spec_policy
from drumline_api.trainingjob import TrainingJob
from drumline_api.trainingqueue import TrainingQueue

ALONE: Final = "crds"
CHART: Final = "helm/drumline/files/crds"
POLICIES: Final = "helm/drumline/files/policies"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of `kubectl get`. Columns of priority 1 need `-o wide`."""

    name: str
    path: str
    type: str = "string"
    priority: int = 0
    description: str = ""

    def manifest(self) -> Schema:
        """Return the entry for `additionalPrinterColumns`."""
        entry: Schema = {"name": self.name, "type": self.type, "jsonPath": self.path}
        if self.description:
            entry["description"] = self.description
        if self.priority:
            entry["priority"] = self.priority
        return entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A kind: its model, and how `kubectl` shows it."""

    model: type[ApiModel]
    kind: str
    plural: str
    short_name: str
    scope: str
    columns: tuple[Column, ...]
    selectable: tuple[str, ...] = ()

    @property
    def file_name(self) -> str:
        """Return the name of the kind's file in every folder."""
        return f"{self.plural}.yaml"

    def manifest(self, *, has_policy: bool = False) -> Schema:
        """Return the CustomResourceDefinition.

        Its policy contains the rules over the whole spec.
        """
        schema = structural_schema(self.model)
        # The chart has the policy, so its CRD must not repeat the rules at each status write.
        if has_policy:
            schema = without_rules_of_the_spec(schema)
        version: Schema = {
            "name": VERSION,
            "served": True,
            "storage": True,
            # Writes of the status do not raise the generation, and need a right of their own.
            "subresources": {"status": {}},
            "additionalPrinterColumns": [column.manifest() for column in self.columns],
            "schema": {"openAPIV3Schema": _with_type_meta(schema)},
        }
        if self.selectable:
            # Field selectors on these paths need Kubernetes 1.31 or later.
            version["selectableFields"] = [{"jsonPath": path} for path in self.selectable]
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{self.plural}.{GROUP}"},
            "spec": {
                "group": GROUP,
                "scope": self.scope,
                "names": {
                    "kind": self.kind,
                    "listKind": f"{self.kind}List",
                    "plural": self.plural,
                    "singular": self.kind.lower(),
                    "shortNames": [self.short_name],
                    "categories": ["drumline"],
                },
                "versions": [version],
            },
        }


_AGE = Column(name="Age", path=".metadata.creationTimestamp", type="date")

_READY = Column(name="Ready", path='.status.conditions[?(@.type=="Ready")].status')

DEFINITIONS: Final = (
    Definition(
        model=TrainingJob,
        kind=TrainingJob.KIND,
        plural="trainingjobs",
        short_name="tj",
        scope="Namespaced",
        columns=(
            Column(name="Queue", path=".spec.queue"),
            Column(name="Phase", path=".status.phase"),
            Column(name="Reason", path=".status.reason"),
            Column(name="Ready", path=".status.ready", description="Ready and desired pods"),
            Column(name="Step", path=".status.step", type="integer"),
            Column(name="Loss", path=".status.loss"),
            Column(name="Expected", path=".status.expectedStart", priority=1, description="Start"),
            Column(name="Ends", path=".status.expectedEnd", priority=1, description="Last step"),
            Column(name="Message", path=".status.message", priority=1),
            Column(name="Restarts", path=".status.restarts", type="integer", priority=1),
            Column(name="Tokens/s", path=".status.tokensPerSecond", type="integer", priority=1),
            _AGE,
        ),
        # Clients can select by them, so that a watch of one queue does not see all jobs.
        selectable=(".spec.queue", ".spec.suspend"),
    ),
    Definition(
        model=TrainingQueue,
        kind=TrainingQueue.KIND,
        plural="trainingqueues",
        short_name="tq",
        scope="Cluster",
        columns=(
            _READY,
            Column(name="GPUs", path=".status.gpus", description="GPUs held and nominal quota"),
            Column(name="Admitted", path=".status.admittedJobs", type="integer"),
            Column(name="Pending", path=".status.pendingJobs", type="integer"),
            Column(name="Spot", path=".spec.spot", priority=1),
            Column(name="Max price", path=".spec.maxPricePerGpuHour", priority=1),
            _AGE,
        ),
    ),
    Definition(
        model=GpuPool,
        kind=GpuPool.KIND,
        plural="gpupools",
        short_name="gp",
        scope="Cluster",
        columns=(
            _READY,
            Column(name="Nodes", path=".status.nodes", type="integer"),
            Column(name="GPUs", path=".status.gpus", description="Allocated and total GPUs"),
            Column(name="Capacity type", path=".spec.capacity.type"),
            Column(
                name="Price",
                path=".spec.capacity.pricePerGpuHour",
                description="Price per GPU-hour",
            ),
            Column(
                name="Reclaimed",
                path=".status.interruptions.reclaimedNodes",
                type="integer",
                priority=1,
                description="Nodes reclaimed by the cloud in 30 days",
            ),
            _AGE,
        ),
    ),
)


def generated() -> Mapping[str, str]:
    """Return the content of each generated file, by its path in the repository."""
    files = {f"{POLICIES}/trainingjobs.yaml": manifest_text(*spec_policy())}
    for definition in DEFINITIONS:
        # Only jobs are written often enough for the cost of rules to matter.
        has_policy = definition.model is TrainingJob
        in_chart = definition.manifest(has_policy=has_policy)
        files[f"{ALONE}/{definition.file_name}"] = manifest_text(definition.manifest())
        files[f"{CHART}/{definition.file_name}"] = manifest_text(in_chart)
    return files


def _with_type_meta(schema: Schema) -> Schema:
    properties: Schema = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        # The server validates metadata itself. Rules may only use its name.
        "metadata": {"type": "object"},
        **schema["properties"],
    }
    return {**schema, "properties": properties}


if __name__ == "__main__":
    write_files(generated())
