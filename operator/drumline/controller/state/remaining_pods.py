"""Pods that a queue pays for beside the members of its jobs.

First, pods of jobs that still hold a node although their job gave up the place. They are charged to
their job's queue until they are gone. A job that is preempted, suspended, deleted or finished pays
as long as its pods run, just as Kubernetes counts a terminating pod on its node. The queue is the
one that the job was admitted with.

A label never decides in favour of its writer. A pod belongs to a job if its controller and its name
are the job's. It counts as *leaving* only if its deletion was requested or Drumline will request
it. A pod of a job that was never seen is charged only if it is terminating, and to a queue that is
open to its namespace.

Leaving pods on a node that is not ready are charged to no queue. Their kubelet is silent, perhaps
for days, and no job could get their GPUs. The quota of pods in Kubernetes leaves out such pods too
(`QuotaV1Pod` in pkg/quota/v1/evaluator/core/pods.go).

    job j (n0, n1) is suspended     j-0-g1 and j-1-g1 continue -> both charged, both leaving
    j is evicted and placed on n2   the same until they end, and j holds n2 as well
    j-1 starts again on n1          the new pod waits for the old pod's GPUs

Second, foreign pods (a notebook, inference) whose label `drumline.dev/queue` names a queue that is
open to their namespace, in this installation. They count until they have ended, and are never
victims. Another scheduler placed them, so they may exceed the quota of a queue, whose jobs then
wait. Pods with GPUs whose label names no such queue are paid for by the queue with
`paysForUnclaimedPods`, if there is one. So a wrong or missing label does not avoid payment.

Users who may create pods may bind them to any node and request any number of GPUs, which the
kubelet rejects. So a pod that no kubelet has accepted, or on a node that is not ready, is charged
to no queue. The exception is a pod that our gate held (`gated_pods`): it is charged from its
admission on.
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
from drumline.kube.views import PodView
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import PodFacts
from drumline.lifecycle.plan.acceptance import is_ours
from drumline.scope import InstallationScope
from drumline_api.base import ANNOTATION_ADMITTED, LABEL_JOB, LABEL_QUEUE
from drumline_api.trainingqueue import TrainingQueueSpec


class RemainingPods:
    """Distinguishes members from remaining pods. Use it in one event loop only.

    Args:
        jobs: the jobs.
        pods: the pods of each job.
        queues: specs of the queues, which name the namespaces that may use them.
        namespaces: labels of namespaces, by which queues select them.
        scope: namespaces whose pods may be charged. Those of other installations are not.
        positions_of: returns the members of a job that holds its assignment.
        admits_workloads: whether this installation admits pods that its gate holds.
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
        """Account of every job that was seen admitted and exists or has pods, by uid."""
        self._gone: dict[str, str] = {}
        """Namespaces of deleted jobs that had pods, by uid."""
        self._vacant: dict[str, tuple[tuple[str, int], Counter[str]]] = {}

    def remember(self, job: Job) -> None:
        """Remember the queue of this version of a job, which holds places.

        The queue pays for pods that remain there, even if the job names another queue later.
        """
        self._accounts[job.uid] = account_of(job)

    def forget(self, namespace: str, uid: str) -> None:
        """Process that a job is gone. Its account is kept while it has pods."""
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
        """Return the pods of one node by role. O(pods), and O(members) of a job with orphans.

        Call it again when the node or a pod there has changed, or a job that holds or held a place
        there.

        Args:
            name: name of the node.
            pods: pods bound to it that have not ended.
            ready: whether its kubelet is heard.
        """
        # Phase 1: sort out members, orphans of jobs, and foreign pods.
        orphans: dict[str, list[PodView]] = defaultdict(list)
        terminating: list[PodView] = []
        foreign: list[PodView] = []
        for pod in pods:
            facts = self._facts(pod)
            if facts is None:
                foreign.append(pod)
            elif not self._is_member(pod, facts):
                orphans[pod.owner_uid].append(pod)
        # Phase 2: foreign pods. One is charged if it claims a queue or GPUs, and a kubelet has it.
        charged: list[ChargedPod] = []
        for pod in foreign:
            claims = LABEL_QUEUE in pod.labels or _may_have_gpus(pod)
            pays = ready and claims and (pod.is_accepted or self._was_admitted(pod))
            # Pods that stay are charged even if no queue pays now: a queue may open to their
            # namespace.
            if pod.terminating and not (pays and self.account(pod)):
                terminating.append(pod)
            elif pays:
                charged.append(ChargedPod(pod=pod, leaving=pod.terminating))
        # Phase 3: orphans. As many of them as the job has places here without a pod are covered by
        # the job's own places. The remaining ones are charged in addition.
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
        """Return the account that pays for a remaining or foreign pod, or None."""
        if self._facts(pod) is None:
            return self._account_of_foreign(pod)
        # The queue at admission counts, not the present one.
        known = self._accounts.get(pod.owner_uid)
        if known is not None:
            return known
        # The operator has not seen the job admitted: only an open queue may be charged.
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
            # The containers of a static pod keep their GPUs when its object is evicted.
            gives_back=spec is not None
            and spec.foreign_pods.borrowed == "Evict"
            and not pod.is_static,
        )

    def _was_admitted(self, pod: PodView) -> bool:
        return self._admits_workloads and ANNOTATION_ADMITTED in pod.annotations

    def _pays_for_unclaimed(self, pod: PodView) -> str:
        """Return the queue that pays for a pod without a valid queue label, or ''."""
        if not (_may_have_gpus(pod) and self._scope.covers(pod.namespace)):
            return ""
        queues = self._queues.by_name.items()
        return next((name for name, spec in queues if spec.pays_for_unclaimed_pods), "")

    def _claims_unknown_job(self, pod: PodView) -> bool:
        """Return whether a pod stays and the job of its labels was never seen.

        Anybody can write labels, so it counts as a foreign pod.
        """
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
        """Return the facts of a job's pod, or None for a foreign pod."""
        if not is_owned(pod) or self._claims_unknown_job(pod):
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
        """Return by node the job's places without a pod, including lost members."""
        # Keyed by version and pod events, because it is called for each node of the job.
        stamp = (job.resource_version, self._pods.stamp(job.namespace, job.uid))
        known = self._vacant.get(job.uid)
        if known is None or known[0] != stamp:
            positions = self._positions_of(job)
            vacant = _vacant(positions, self._pods.of(job.namespace, job.uid))
            known = self._vacant[job.uid] = (stamp, vacant)
        return known[1]


def _may_have_gpus(pod: PodView) -> bool:
    """Return whether it requests a device of any kind. Device names have a domain."""
    return any("/" in resource for resource in pod.requests)


def _vacant(positions: MemberPositions, pods: Iterable[PodFacts]) -> Counter[str]:
    counted = counted_members(pods)
    return Counter(
        node
        for position, (index, generation, node) in enumerate(positions.places)
        if position in positions.lost or (index, generation, node) not in counted
    )
