"""Pods that a queue pays for beside the members of its jobs.

First, pods of jobs that still hold a node although their job gave the place up. They are charged to
their job's queue until they are gone: a job that is preempted, suspended, deleted or finished pays
as long as its pods run, as Kubernetes counts a terminating pod on its node. Which queue that is was
seen when the job was admitted. Labels decide nothing that their writer gains by: a pod counts as a
job's if its controller and its name are the job's, it counts as *leaving* only if its deletion was
requested or Drumline will request it, and of a job that was never seen only a terminating pod is
charged, to a queue that is open to its namespace.

Pods that are to go from a node that is not ready are charged to no queue: their kubelet is silent,
perhaps for days, and no job could have their GPUs. The quota of pods in Kubernetes leaves such pods
out as well (`QuotaV1Pod` in pkg/quota/v1/evaluator/core/pods.go).

    job j (n0, n1) is suspended     j-0-g1 and j-1-g1 run on  -> both charged, both leaving
    j is evicted and placed on n2   the same until they end, and j holds n2 besides
    j-1 starts again on n1          the old pod's GPUs are those that the new pod waits for

Second, foreign pods (a notebook, inference) whose label `drumline.dev/queue` names a queue that is
open to their namespace, which has to be this installation's. They count until they have ended, are
never victims, and were placed by another scheduler: they may take a queue above its quota, whose
jobs wait then. Pods with GPUs whose label names no such queue are paid for by the queue that
`paysForUnclaimedPods`, where there is one: no wrong label, nor one that is taken off, dodges it.

Whoever may create pods may bind them to any node and ask for any number of GPUs, which its kubelet
rejects. So a pod that no kubelet has accepted, or on a node that is not ready, is charged to no
queue; but for one that our gate held (`gated_pods`), which is charged from when it was let go.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from drumline.controller.informers.namespaces import NamespaceCache
from drumline.controller.informers.specs import SpecCache
from drumline.controller.jobs.jobs import JobCache
from drumline.controller.nodes.pods import ChargedPod, JobPods, PodsByRole, is_owned
from drumline.controller.workloads.admitted import (
    MemberPositions,
    counted_members,
    holds_assignment,
)
from drumline.controller.workloads.held import Account, ForeignPod, account_of, account_of_foreign
from drumline.kube.views import PodPhase, PodView
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import PodFacts
from drumline.lifecycle.plan.acceptance import is_ours
from drumline.scope import InstallationScope
from drumline_api.base import ANNOTATION_ADMITTED, LABEL_JOB, LABEL_QUEUE
from drumline_api.trainingqueue import TrainingQueueSpec


class RemainingPods:
    """Tells members from pods that remain. For one event loop.

    Args:
        jobs: the jobs.
        pods: the pods of each job.
        queues: which namespaces may use a queue.
        namespaces: their labels, by which queues select them.
        scope: the namespaces whose pods may be charged: another installation's never are.
        positions_of: the members of a job that holds its assignment.
        admits_workloads: whether this installation lets pods go that its gate holds.
    """

    def __init__(
        self,
        *,
        jobs: JobCache,
        pods: JobPods,
        queues: SpecCache[TrainingQueueSpec],
        namespaces: NamespaceCache,
        scope: InstallationScope,
        positions_of: Callable[[Job], MemberPositions],
        admits_workloads: bool = False,
    ) -> None:
        self._admits_workloads = admits_workloads
        self._jobs = jobs
        self._pods = pods
        self._queues = queues
        self._namespaces = namespaces
        self._scope = scope
        self._positions_of = positions_of
        self._accounts: dict[str, Account] = {}
        """By uid, of every job that was seen admitted and exists or has pods."""
        self._gone: dict[str, str] = {}
        """Namespaces by uid of deleted jobs that had pods."""
        self._vacant: dict[str, tuple[tuple[str, int], Counter[str]]] = {}

    def remember(self, job: Job) -> None:
        """The job holds places in this version: its queue of now pays for pods that remain there.

        Later it may name another queue, before these pods are gone.
        """
        self._accounts[job.uid] = account_of(job)

    def forget(self, namespace: str, uid: str) -> None:
        """The job is gone; what is known of it is kept while it has pods."""
        self._vacant.pop(uid, None)
        if self._pods.of(namespace, uid):
            self._gone[uid] = namespace
        else:
            self._accounts.pop(uid, None)

    def tidy(self) -> None:
        """Forget the deleted jobs whose pods are gone. O(deleted jobs with pods)."""
        for uid in [uid for uid, space in self._gone.items() if not self._pods.of(space, uid)]:
            del self._gone[uid]
            self._accounts.pop(uid, None)

    def on_node(self, name: str, pods: Iterable[PodView], *, ready: bool) -> PodsByRole:
        """The pods of one node by their role. O(pods), and O(members) of a job with orphans.

        To be asked again when the node or a pod there changed, or a job that holds or held a place
        there.

        Args:
            name: of the node.
            pods: those bound to it that have not ended.
            ready: whether its kubelet is heard.
        """
        orphans: dict[str, list[PodView]] = defaultdict(list)
        terminating: list[PodView] = []
        foreign: list[PodView] = []
        for pod in pods:
            facts = self._facts(pod)
            if facts is None:
                foreign.append(pod)
            elif not self._is_member(pod, facts):
                orphans[pod.owner_uid].append(pod)
        charged: list[ChargedPod] = []
        for pod in foreign:
            claims = LABEL_QUEUE in pod.labels or _may_have_gpus(pod)
            pays = ready and claims and (_is_accepted(pod) or self._was_let_go(pod))
            # a pod that stays is looked at again whenever its queue is: that may be closed or open
            if pod.terminating and not (pays and self.account(pod)):
                terminating.append(pod)
            elif pays:
                charged.append(ChargedPod(pod=pod, leaving=pod.terminating))
        for of_job in orphans.values():
            of_job.sort(key=lambda pod: pod.name)
            job = self._job_of(of_job[0])
            vacant = 0 if job is None or not holds_assignment(job) else self._vacancies(job)[name]
            terminating += of_job[:vacant]  # the place is held, and paid for, until it is empty
            is_deleted_by_us = job is not None and is_ours(job) and not job.unreadable
            for pod in of_job[vacant:]:
                leaving = pod.terminating or is_deleted_by_us
                if (ready or not leaving) and self.account(pod) is not None:
                    charged.append(ChargedPod(pod=pod, leaving=leaving))
                elif leaving:
                    terminating.append(pod)
        return PodsByRole(charged=tuple(charged), terminating=tuple(terminating))

    def account(self, pod: PodView) -> Account | None:
        """What pays for a pod that remains or is foreign; None: no queue does."""
        if self._facts(pod) is None:
            return self._account_of_foreign(pod)
        known = self._accounts.get(pod.owner_uid)
        if known is not None:
            return known
        job = self._job_of(pod)
        queue = job.spec.queue if job is not None else pod.labels.get(LABEL_QUEUE, "")
        if not self._is_open(queue, pod.namespace):
            return None
        if job is not None:
            return account_of(job)
        key = f"{pod.namespace}/{pod.labels[LABEL_JOB]}"
        return Account(key=key, uid=pod.owner_uid, queue=queue)

    def _account_of_foreign(self, pod: PodView) -> Account | None:
        queue = pod.labels.get(LABEL_QUEUE, "")
        if not self._is_open(queue, pod.namespace):
            queue = self._pays_for_unclaimed(pod)
        if not queue:
            return None
        spec = self._queues.get(queue)
        return account_of_foreign(
            ForeignPod(namespace=pod.namespace, name=pod.name, uid=pod.uid),
            queue=queue,
            gives_back=spec is not None and spec.foreign_pods.borrowed == "Evict",
        )

    def _was_let_go(self, pod: PodView) -> bool:
        return self._admits_workloads and ANNOTATION_ADMITTED in pod.annotations

    def _pays_for_unclaimed(self, pod: PodView) -> str:
        """The queue that pays for a pod whose own label names none that may; '' for no queue."""
        if not (_may_have_gpus(pod) and self._scope.covers(pod.namespace)):
            return ""
        queues = self._queues.by_name.items()
        return next((name for name, spec in queues if spec.pays_for_unclaimed_pods), "")

    def _is_stranger(self, pod: PodView) -> bool:
        """Whether it stays, and the job of its labels was never seen: anybody can write them."""
        known = pod.owner_uid in self._accounts or self._job_of(pod) is not None
        return not known and not pod.terminating

    def _is_open(self, queue: str, namespace: str) -> bool:
        spec = self._queues.get(queue)
        return (
            spec is not None
            and self._scope.covers(namespace)
            and self._namespaces.is_open(spec, namespace)
        )

    def _facts(self, pod: PodView) -> PodFacts | None:
        """What the lifecycle knows of a job's pod; None for a foreign pod."""
        if not is_owned(pod) or self._is_stranger(pod):
            return None
        return self._pods.facts(pod)

    def _is_member(self, pod: PodView, facts: PodFacts) -> bool:
        job = self._job_of(pod)
        return (
            job is not None and holds_assignment(job) and self._positions_of(job).has_member(facts)
        )

    def _job_of(self, pod: PodView) -> Job | None:
        job = self._jobs.get(f"{pod.namespace}/{pod.labels.get(LABEL_JOB, '')}")
        return job if job is not None and job.uid == pod.owner_uid else None

    def _vacancies(self, job: Job) -> Counter[str]:
        """By node: places of the job without a pod of their own, lost ones included."""
        stamp = (job.resource_version, self._pods.stamp(job.namespace, job.uid))
        known = self._vacant.get(job.uid)
        if known is None or known[0] != stamp:
            positions = self._positions_of(job)
            vacant = _vacant(positions, self._pods.of(job.namespace, job.uid))
            known = self._vacant[job.uid] = (stamp, vacant)
        return known[1]


def _is_accepted(pod: PodView) -> bool:
    """Whether a kubelet has begun with it: users do not write the status of pods."""
    return pod.phase is PodPhase.RUNNING or bool(pod.containers or pod.init_containers)


def _may_have_gpus(pod: PodView) -> bool:
    """Whether it asks for a device of any kind: those have names with a domain."""
    return any("/" in resource for resource in pod.requests)


def _vacant(positions: MemberPositions, pods: Iterable[PodFacts]) -> Counter[str]:
    counted = counted_members(pods)
    return Counter(
        node
        for position, (index, generation, node) in enumerate(positions.places)
        if position in positions.lost or (index, generation, node) not in counted
    )
