"""The cluster in memory, updated by the informers' events.

The informers' caches are the source. Derived values (the use of each node, the pods of each job)
are updated incrementally, in one cache for each kind. Events enter here, so that an event of one
kind reaches every cache that depends on it.
"""

from __future__ import annotations

from collections.abc import Callable

from drumline.controller.informers.namespaces import NamespaceCache
from drumline.controller.informers.specs import PriorityCache, SpecCache
from drumline.controller.jobs.chains import Chains
from drumline.controller.jobs.jobs import JobCache
from drumline.controller.nodes.conversion import pool_of
from drumline.controller.nodes.interruptions import Interruptions
from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.nodes.pods import JobPods
from drumline.controller.pools.autoscaling import offers_of
from drumline.controller.queues.budgets import QueueBudgets
from drumline.controller.queues.conversion import queue_of
from drumline.controller.queues.gpu_seconds_rates import GpuSecondsRates
from drumline.controller.state.snapshots import SnapshotBuilder, Sources
from drumline.controller.workloads.workloads import Workloads
from drumline.kube.kinds import Resource
from drumline.kube.views import (
    ObjectView,
    PodView,
    PriorityClassView,
    RuntimeClassView,
    TrainingJobView,
)
from drumline.kube.workload_views import WorkloadView
from drumline.lifecycle.model.hardware import (
    GpuShare,
    PoolGpus,
    PoolHardware,
    largest_hardware,
    share_in,
)
from drumline.lifecycle.model.job import Job
from drumline.scope import EVERYWHERE, InstallationScope
from drumline_api.gpupool import GpuPoolSpec
from drumline_api.trainingqueue import TrainingQueueSpec
from drumline_contract import Progress
from drumline_scheduler.model import Toleration


class ClusterCache:
    """All caches, and the handlers that update them. For one event loop.

    `on_*` methods are called for informer events. `None` as the new view means deleted.

    Args:
        nodes: the nodes and the pods on them.
        progress: returns the progress that a job's agents reported last, by the job's uid.
        platform_tolerations: tolerations that the platform adds to pods of the bundled trainer.
        scope: scope of this installation.
        admits_workloads: whether workloads other than TrainingJobs wait here for quota.
        guarded_pools: pools in which foreign pods may be victims of jobs. None if not known.
        judge_later: accepts a job whose verdict will be passed to `jobs.settle`. None: jobs are
            judged at once.
    """

    def __init__(
        self,
        *,
        nodes: NodeCache,
        progress: Callable[[str], Progress | None] = lambda _: None,
        platform_tolerations: tuple[Toleration, ...] = (),
        scope: InstallationScope = EVERYWHERE,
        admits_workloads: bool = False,
        guarded_pools: frozenset[str] | None = None,
        judge_later: Callable[[Job], None] | None = None,
    ) -> None:
        # Caches of one kind each. None of them calls another one.
        self.nodes = nodes
        self.jobs = JobCache(
            changed=self._job_changed,
            forgotten=self._job_forgotten,
            hardware=self.hardware_of,
            judge_later=judge_later,
        )
        self.chains = Chains(self.jobs.get)
        self.pods = JobPods()
        self.pools = SpecCache(GpuPoolSpec, convert=_converted_pool)
        self.queues = SpecCache(TrainingQueueSpec, convert=queue_of)
        self.namespaces = NamespaceCache()
        self.volumes = nodes.volumes
        self.budgets = QueueBudgets(self.queues, price_of=self._price_of)
        self.interruptions = Interruptions()
        self._priorities = PriorityCache()
        self.workloads = (
            Workloads(
                queues=self.queues,
                pools=self.pools,
                namespaces=self.namespaces,
                priorities=self._priorities,
                scope=scope,
                volumes=self.volumes,
            )
            if admits_workloads
            else None
        )
        self.scheduling = SnapshotBuilder(
            Sources(
                jobs=self.jobs,
                chains=self.chains,
                pods=self.pods,
                nodes=self.nodes,
                pools=self.pools,
                queues=self.queues,
                namespaces=self.namespaces,
                budgets=self.budgets,
                interruptions=self.interruptions,
                priorities=self._priorities,
                volumes=self.volumes,
                workloads=self.workloads,
            ),
            progress=progress,
            platform_tolerations=platform_tolerations,
            scope=scope,
            guarded=guarded_pools,
        )

    def on_job(self, old: TrainingJobView | None, new: TrainingJobView | None) -> str | None:
        """Process an event of a TrainingJob. Return why it cannot be read, if that is new."""
        problem = self.jobs.on_job(old, new)
        if new is not None:
            self.scheduling.prepare(f"{new.namespace}/{new.name}")
        return problem

    def on_pod(self, old: PodView | None, new: PodView | None) -> bool:
        """Process an event of a pod: of ours by job, of any owner by node.

        Returns:
            Whether it waits for quota, or did.
        """
        leaves_at = self.nodes.on_pod(old, new)
        self.pods.on_pod(old, new, leaves_at=leaves_at)
        if old is None and new is not None:
            self.scheduling.learn_requests(new)
        return self.workloads is not None and self.workloads.on_pod(old, new)

    def on_workload(
        self, resource: Resource, old: WorkloadView | None, new: WorkloadView | None
    ) -> None:
        """Process an event of a Job or JobSet that names a queue.

        Args:
            resource: the kind.
            old: the object before the event. None: it is new.
            new: the object after the event. None: it was deleted.
        """
        if self.workloads is not None:
            self.workloads.on_workload(resource, old, new)

    def on_pool(self, old: ObjectView | None, new: ObjectView | None) -> str | None:
        """Process an event of a GpuPool. Return why it cannot be read, or None."""
        # Another selector or hardware may change the pool of any node and the verdict on any job.
        self.nodes.pools_changed()
        problem = self.pools.on_object(old, new)
        self.volumes.on_pools(self.pools.by_name)
        self.jobs.rejudge()
        return problem

    def on_runtime_class(self, old: RuntimeClassView | None, new: RuntimeClassView | None) -> bool:
        """Take in an event of a RuntimeClass; returns whether it may change a decision."""
        changed = self.nodes.runtime_classes.on_runtime_class(old, new)
        if changed:
            self.nodes.pools_changed()
        return changed

    def gpus_of(self, pool: str) -> PoolGpus | None:
        """Return the GPUs with which pods of a pool are created, or None if it is not known."""
        spec = self.pools.get(pool)
        return PoolGpus.of(spec) if spec is not None else None

    def hardware_of(self, job: Job) -> PoolHardware | None:
        """Return the largest GPUs that a job may get, if its pools declare them."""
        return largest_hardware(job.spec, self.pools.by_name)

    def on_queue(self, old: ObjectView | None, new: ObjectView | None) -> str | None:
        """Process an event of a TrainingQueue. Return why it cannot be read, or None."""
        return self.queues.on_object(old, new)

    def observe_budgets(self, *, now: float) -> None:
        """Charge the queues' budgets with the use of their jobs. O(jobs).

        This is the first observation: the use of foreign pods counts from the next one on.
        """
        limited = self.budgets.budgets()
        jobs = (job for job in self.jobs.all() if job.spec.queue in limited)
        self.budgets.observe(GpuSecondsRates().of(jobs), foreign_gpus={}, now=now)

    def share_of(self, job: Job, pool: str) -> GpuShare | None:
        """Return the fraction of a pool's GPU that each GPU of a job is. None means a whole GPU."""
        return share_in(self.pools.get(pool), resource=job.spec.gpu_partition)

    def _price_of(self, pool: str) -> int | None:
        spec = self.pools.get(pool)
        return None if spec is None else pool_of(pool, spec).price

    def on_priority_class(
        self, old: PriorityClassView | None, new: PriorityClassView | None
    ) -> None:
        """Process an event of a PriorityClass."""
        self._priorities.on_priority_class(old, new)

    def _job_changed(self, before: Job | None, after: Job | None) -> None:
        """Count the nodes of both assignments again, because pods there may be orphans now."""
        self.chains.changed(before, after)
        # A version with places is replaced: its queue pays for pods that stay behind.
        if before is not None and before.status.assignment is not None:
            self.scheduling.places_given_up(before)
        versions = [job for job in (before, after) if job is not None]
        assignments = [job.status.assignment for job in versions]
        states = [(job.status.assignment, job.finished) for job in versions]
        # Same places, same state: most status writes change no node.
        if len(states) == 2 and states[0] == states[1]:
            return
        self.volumes.on_job(before, after)
        for assignment in filter(None, assignments):
            self.nodes.recount(assignment.node_names())

    def _job_forgotten(self, namespace: str, uid: str) -> None:
        self.scheduling.forget(namespace, uid)


def _converted_pool(name: str, spec: GpuPoolSpec) -> object:
    """Convert a pool's spec to everything that cycles make of it, to find errors early."""
    return pool_of(name, spec), offers_of({name: spec})
