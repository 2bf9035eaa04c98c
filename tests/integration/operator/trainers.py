"""Gangs of the bundled trainer without a trainer: KWOK runs the pods, stand-ins are their agents.

KWOK gives every pod a loopback address; the agent of a pod listens there as soon as it has one.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from drumline.lifecycle.manifests.children import job_token
from drumline_contract import Notice, NoticeAnswer, Progress
from tests.fake_agents import FakeAgent
from tests.integration.operator.conftest import Site
from tests.kube import Json
from tests.operator_process import SIGNING_KEY
from tests.patience import HANG_SECONDS


class Trainers:
    """The agents of one job's pods, by the pods' names; ends them when left.

    Args:
        site: where the job is.
        name: of the job.
        saves: checkpoint that new agents answer notices with; None: they do not answer.
        signing_key: that the gang is admitted under.
    """

    def __init__(
        self,
        site: Site,
        name: str,
        *,
        saves: Progress | None = None,
        signing_key: str = SIGNING_KEY,
    ) -> None:
        self.site = site
        self.name = name
        self.saves = saves
        self.signing_key = signing_key
        self.agents: dict[str, FakeAgent] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for agent in self.agents.values():
            agent.die()

    def submit(self, *, nodes: int, **spec: Any) -> None:
        """Create the job: whole nodes of 8 GPUs; the bundled trainer, unless it has a template."""
        if "template" in spec:
            self.site.submit(self.name, nodes=nodes, gpusPerNode=8, **spec)
            return
        trainer = {"globalBatchSize": 96, **spec.pop("trainer", {})}
        spec.setdefault("checkpoint", {"claimName": "checkpoints"})
        self.site.submit(self.name, nodes=nodes, gpusPerNode=8, trainer=trainer, **spec)

    def attend(
        self, *names: str, after: Trainers | None = None, seconds: float = HANG_SECONDS
    ) -> None:
        """Give these pods their agents once they run; agents of pods that are gone end.

        Args:
            names: `index-generation` of the pods.
            after: a gang that left for this one: addresses of its pods may be given anew.
            seconds: how long that may take.
        """
        wanted = {f"{self.name}-{name}" for name in names}

        def run(pods: list[Json]) -> bool:
            up = {pod["metadata"]["name"] for pod in pods if pod["status"].get("podIP")}
            return wanted <= up

        labels = f"drumline.dev/job={self.name}"
        pods = self.site.kube.wait_all(
            "pods", self.site.namespace, run, labels=labels, seconds=seconds
        )
        for gang in filter(None, (self, after)):
            for gone in gang.agents.keys() - gang.uids().keys():
                gang.agents.pop(gone).die()
        for pod in pods:
            if pod["metadata"]["name"] in wanted - self.agents.keys():
                self._start(pod)

    def _start(self, pod: Json) -> None:
        metadata, labels = pod["metadata"], pod["metadata"]["labels"]
        job_uid = labels["drumline.dev/job-uid"]
        agent = FakeAgent(
            pod["status"]["podIP"],
            token=job_token(self.signing_key.encode(), job_uid),
            job_uid=job_uid,
            pod_uid=metadata["uid"],
            index=int(labels["drumline.dev/index"]),
        )
        agent.saves = self.saves
        self.agents[metadata["name"]] = agent

    def running(self, generation: int, *, seconds: float = HANG_SECONDS) -> Json:
        """The job once all members of this generation train."""

        def runs(job: Json | None) -> bool:
            status = (job or {}).get("status", {})
            joining = "joining" in status.get("assignment", {})
            running = (status.get("phase"), status.get("generation")) == ("Running", generation)
            return running and not joining

        return self.site.wait(self.name, runs, seconds=seconds)

    def uids(self) -> dict[str, str]:
        """Of the job's pods, by name."""
        return {
            pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self.site.pods(self.name)
        }

    def saved(self, *, step: int) -> None:
        """The leader answers its last notice: the gang has saved this step."""
        agent = self.agents[f"{self.name}-0-g1"]
        digest = f"digest-{step}"
        agent.change(
            notice=NoticeAnswer(id=agent.notices[-1].id, step=step, digest=digest),
            progress=Progress(
                step=step, total_steps=100, checkpoint_step=step, checkpoint_digest=digest
            ),
        )

    def noticed(self, name: str, *, withdraw: bool = False) -> Notice:
        """The newest notice of this pod's agent, once it has one of this kind."""
        agent = self.agents[f"{self.name}-{name}"]
        agent.wait_for(lambda agent: agent.notices and agent.notices[-1].withdraw == withdraw)
        return agent.notices[-1]
