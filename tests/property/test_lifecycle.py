"""plan() in a cluster where anything may fail at any time; see `lifecycle_model`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from drumline.lifecycle.model.observed import PodFacts
from drumline.lifecycle.plan.actions import JobPlan
from drumline_api.conditions import Phase
from drumline_contract import ExitCode, FaultClass
from tests.builders import a_job
from tests.property.lifecycle_model import Model
from tests.property.lifecycle_world import NODES

FORMS: dict[str, dict[str, Any]] = {
    "trainer": {"trainer": {"globalBatchSize": 12}, "checkpoint": {"claimName": "shared"}},
    "template": {"template": {"image": "any:1"}},
    "supervised": {"template": {"image": "any:1", "command": ["train"], "launch": "PerGpu"}},
    "launched": {
        "template": {"image": "any:1"},
        "roles": [{"name": "launcher", "command": ["mpirun"], "completesJob": True}],
    },
    "evaluated": {
        "template": {"image": "any:1", "command": ["train"], "launch": "PerGpu"},
        "roles": [{"name": "evaluator", "command": ["evaluate"]}],
    },
}
"""What the pods run: the bundled trainer, a command of the kubelet, a command of an agent, these
beside a launcher that decides, and beside an evaluator of which the agents know nothing."""
FORM = st.sampled_from(sorted(FORMS))
WHICH = st.integers(0, 5)
CODES = st.sampled_from([0, 1, 137, ExitCode.PEER_LOST, ExitCode.PREEMPTED])
NODE = st.sampled_from(NODES)
MANY_RESTARTS = {
    "maxRestarts": 1000,
    "maxOutOfMemoryRestarts": 1000,
    "maxHangRestarts": 1000,
    "maxFailedStarts": 1000,
}


def a_model(*, nodes: int, form: str = "trainer", min_nodes: int | None = None) -> Model:
    spec = dict(FORMS[form])
    if min_nodes is not None and form == "trainer":
        spec["minNodes"] = min(nodes, min_nodes)
    ranks = max(1, nodes - len(spec.get("roles", ())))
    job = a_job(nodes=ranks, gpusPerNode=1, startDeadlineSeconds=60, recovery=MANY_RESTARTS, **spec)
    return Model(job, own_budget=nodes % 2 == 0)  # both ways of protection


def calm(model: Model, *, rounds: int) -> None:
    """Nothing fails any more: the job comes to its end within so many rounds of five seconds."""
    model.suspend(wanted=False)
    model.crash_in = model.uncreatable = None
    for node in list(model.dead):
        model.boot_node(node)
    model.threatened.clear()
    for _ in range(rounds):
        go_on(model)
        if model.job.status.phase is Phase.RUNNING and model.job.status.disruption is None:
            for pod in list(model.pods.values()):
                model.end(pod, 0)
        model.settle()
        model.now += 5
        if model.job.finished:
            return
    raise AssertionError(f"no end within {rounds} rounds: {model.job.status}")


def go_on(model: Model) -> None:
    """All that is under way gets on: pods stand or leave, notices are answered."""
    model.look()
    model.schedule(NODES)
    model.settle()
    for pod in list(model.pods.values()):
        model.leave_node(pod)
        model.stand(pod)
    model.settle()
    model.save()
    model.settle()


def a_running_model(*, nodes: int, form: str = "trainer", min_nodes: int | None = None) -> Model:
    model = a_model(nodes=nodes, form=form, min_nodes=min_nodes)
    for _ in range(3):
        go_on(model)
        model.now += 5
    assert model.job.status.phase is Phase.RUNNING
    model.writes.clear()
    return model


class Faults(RuleBasedStateMachine):
    """Any interleaving of the operator's steps with what can go wrong around it."""

    model: Model

    @initialize(nodes=st.integers(1, 3), form=FORM, min_nodes=st.none() | st.integers(1, 2))
    def submit(self, nodes: int, form: str, min_nodes: int | None) -> None:
        self.model = a_model(nodes=nodes, form=form, min_nodes=min_nodes)

    def pod(self, which: int) -> PodFacts:
        pods = sorted(self.model.pods.values(), key=lambda pod: pod.uid)
        return pods[which % len(pods)]

    @rule()
    def the_watch_of_jobs_catches_up(self) -> None:
        self.model.seen_job = self.model.job

    @rule()
    def the_watch_of_pods_catches_up(self) -> None:
        self.model.seen_pods = dict(self.model.pods)

    @rule()
    def reconcile(self) -> None:
        self.model.reconcile()

    @rule()
    def look_and_reconcile(self) -> None:
        self.model.look()
        self.model.reconcile()

    @rule(order=st.permutations(NODES), grow=st.booleans())
    def schedule(self, order: list[str], grow: bool) -> None:
        self.model.schedule(tuple(order[: self.model.job.spec.nodes + 1]), grow=grow)

    @rule()
    def a_job_of_more_importance_comes(self) -> None:
        self.model.preempt()

    @rule()
    def it_goes_again(self) -> None:
        self.model.withdraw()

    @rule()
    def the_gang_trains(self) -> None:
        self.model.train()

    @rule()
    def the_gang_saves(self) -> None:
        self.model.save()

    @rule(fault_class=st.sampled_from(FaultClass))
    def a_rank_recovers_in_place(self, fault_class: FaultClass) -> None:
        self.model.recover_in_place(fault_class)

    @rule(node=NODE)
    def a_node_dies(self, node: str) -> None:
        self.model.kill_node(node)

    @rule(node=NODE)
    def a_node_comes_back(self, node: str) -> None:
        self.model.boot_node(node)

    @rule(node=NODE, seconds=st.none() | st.sampled_from([0, 15, 120]))
    def a_node_s_end_is_announced(self, node: str, seconds: int | None) -> None:
        deadline = None if seconds is None else self.model.now + seconds
        self.model.threaten(node, deadline=deadline)

    @rule(node=NODE)
    def a_node_is_cordoned(self, node: str) -> None:
        self.model.cordon(node)

    @rule(node=NODE)
    def a_node_is_drained(self, node: str) -> None:
        self.model.cordon(node)
        self.model.drain(node)

    @rule(writes=st.integers(1, 4), before=st.booleans())
    def operator_will_die_at_a_write(self, writes: int, before: bool) -> None:
        self.model.crash_in, self.model.crash_before = writes, before

    @rule()
    def operator_is_replaced(self) -> None:
        self.model.restart_operator()

    @rule(seconds=st.sampled_from([1, 5, 11, 70, 400]))
    def time_passes(self, seconds: int) -> None:
        """No watch is as late as the operator's patience with pods it has not been shown."""
        self.model.look()
        self.model.now += seconds

    @rule()
    def all_pods_stand(self) -> None:
        for pod in list(self.model.pods.values()):
            self.model.stand(pod)

    @precondition(lambda self: self.model.pods)
    @rule(which=WHICH)
    def a_pod_stands(self, which: int) -> None:
        self.model.stand(self.pod(which))

    @precondition(lambda self: self.model.pods)
    @rule(which=WHICH, code=CODES)
    def a_pod_ends(self, which: int, code: int) -> None:
        self.model.end(self.pod(which), code)

    @precondition(lambda self: self.model.pods)
    @rule(which=WHICH)
    def a_kubelet_refuses(self, which: int) -> None:
        self.model.refuse(self.pod(which))

    @precondition(lambda self: self.model.pods)
    @rule(which=WHICH)
    def a_pod_is_deleted(self, which: int) -> None:
        self.model.delete(self.pod(which))

    @precondition(lambda self: self.model.pods)
    @rule(which=WHICH)
    def a_pod_has_left(self, which: int) -> None:
        self.model.leave_node(self.pod(which))

    @rule(index=st.none() | st.integers(0, 2))
    def the_server_fails_to_create_a_pod(self, index: int | None) -> None:
        self.model.uncreatable = index

    @rule(wanted=st.booleans())
    def the_user_suspends_or_resumes(self, wanted: bool) -> None:
        self.model.suspend(wanted=wanted)

    @rule()
    def no_part_of_a_gang_outlives_the_start_deadline(self) -> None:
        """I3: at the deadline nothing is bound of a gang that does not stand."""
        self.model.crash_in = None
        self.model.settle()
        deadline = self.model.start_deadline
        if deadline is not None:
            self.model.now = max(self.model.now, deadline)
            self.model.settle()
            assert self.model.start_deadline != deadline

    @invariant()
    def no_member_is_there_twice(self) -> None:
        alive = [(pod.generation, pod.index) for pod in self.model.pods.values() if pod.end is None]
        assert len(alive) == len(set(alive))

    def teardown(self) -> None:
        """I7: once faults stop every history comes to its end, and then nothing is written."""
        if not hasattr(self, "model"):
            return
        calm(self.model, rounds=100)
        assert self.model.job.status.phase is Phase.SUCCEEDED
        writes = self.model.writes.copy()
        self.model.settle()
        assert self.model.planned() == JobPlan()
        assert self.model.writes == writes


TestFaults = Faults.TestCase
TestFaults.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("nodes", [2, 3])
@pytest.mark.parametrize("form", FORMS)
def test_an_undisturbed_job_costs_its_pods_three_statuses_and_its_children(
    nodes: int, form: str
) -> None:
    model = a_model(nodes=nodes, form=form)
    calm(model, rounds=10)
    children = 1 + model.own_budget  # the Secret
    assert model.writes == {"status": 3, "child": children, "pod": nodes}


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("write", range(1, 7))
def test_a_crash_at_any_write_of_a_plain_life_creates_nothing_twice(
    write: int, before: bool
) -> None:
    model = a_model(nodes=3)
    model.crash_in, model.crash_before = write, before
    for _ in range(6):
        model.look()
        model.schedule(NODES)
        model.reconcile()
        for pod in list(model.pods.values()):
            model.stand(pod)
        model.save()
    assert model.epoch == 2
    calm(model, rounds=10)
    assert model.job.status.phase is Phase.SUCCEEDED
    assert model.writes["pod"] == 3
    assert model.job.status.generation == 1


def pods_of(model: Model) -> dict[str, str]:
    return {name: pod.uid for name, pod in model.pods.items()}


@pytest.mark.parametrize("form", ["trainer", "supervised"])
@pytest.mark.parametrize("loss", ["deleted", "node dies", "node boots"])
def test_a_replacement_costs_a_single_pod_and_three_writes(loss: str, form: str) -> None:
    """The fourth tells how the recovery went, once the agents know it.

    A program of the user may still save on the dead node: its successor waits for its grace period.
    """
    model = a_running_model(nodes=3, form=form)
    before = pods_of(model)
    victim = next(pod for pod in model.pods.values() if pod.index == 1)
    if loss == "deleted":
        model.delete(victim)
    else:
        model.kill_node(victim.node)
    if loss == "node boots":
        model.boot_node(victim.node)
    for _ in range(4 if form == "trainer" else 9):
        go_on(model)
        model.now += 5
    assert model.job.status.phase is Phase.RUNNING
    assert (model.writes["status"], model.writes["pod"], model.writes["child"]) == (3, 1, 0)
    survivors = {name: uid for name, uid in before.items() if name != victim.name}
    assert survivors.items() <= pods_of(model).items()


def test_a_preemption_costs_two_writes_and_two_more_when_the_job_is_back() -> None:
    model = a_running_model(nodes=3)
    model.train()
    model.look()
    model.preempt()
    model.settle()
    model.save()
    model.settle()
    status = model.job.status
    assert (status.assignment, status.checkpoint and status.checkpoint.step) == (None, 1)
    assert model.writes["status"] == 2
    for _ in range(4):
        go_on(model)
        model.now += 5
    assert model.job.status.phase is Phase.RUNNING
    assert (model.writes["status"], model.writes["pod"], model.writes["child"]) == (4, 3, 0)


@pytest.mark.parametrize(("form", "writes"), [("trainer", 4), ("supervised", 3)])
def test_an_announced_disruption_costs_a_single_pod_and_four_writes(form: str, writes: int) -> None:
    """One less where no save is waited for: SIGTERM asks for it."""
    model = a_running_model(nodes=3, form=form)
    model.threaten(NODES[1], deadline=model.now + 120)
    for _ in range(4):
        go_on(model)
        model.now += 5
    assert model.job.status.phase is Phase.RUNNING
    assert (model.writes["status"], model.writes["pod"]) == (writes, 1)
    assert NODES[1] not in {pod.node for pod in model.pods.values()}


def test_shrinking_and_growing_back_cost_the_new_pod_and_three_writes_each() -> None:
    model = a_running_model(nodes=4, min_nodes=1)
    model.kill_node(NODES[3])
    for _ in range(3):
        go_on(model)
        model.now += 5
    assert (model.job.size, model.writes["status"], model.writes["pod"]) == (3, 3, 0)
    model.boot_node(NODES[3])
    model.look()
    model.schedule(NODES, grow=True)
    for _ in range(3):
        go_on(model)
        model.now += 5
    assert (model.job.size, model.writes["status"], model.writes["pod"]) == (4, 6, 1)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("write", range(1, 8))
@pytest.mark.parametrize("event", ["loss", "preemption", "announcement"])
def test_a_crash_at_any_write_of_a_recovery_ends_in_the_same_state(
    event: str, write: int, before: bool
) -> None:
    """I9: the same members, with one new pod at most for each that had to go."""
    model = a_running_model(nodes=3)
    model.train()
    model.crash_in, model.crash_before = write, before
    model.look()
    if event == "loss":
        model.kill_node(NODES[1])
    elif event == "preemption":
        model.preempt()
    else:
        model.threaten(NODES[1], deadline=model.now + 120)
    for _ in range(6):
        go_on(model)
        model.now += 5
    assert model.job.status.phase is Phase.RUNNING
    if event != "preemption" or model.epoch == 1:
        assert model.writes["pod"] == (3 if event == "preemption" else 1)
    assert {pod.index for pod in model.pods.values() if pod.end is None} >= {0, 1, 2}


def test_a_job_that_is_needed_no_more_by_another_trains_on() -> None:
    model = a_running_model(nodes=3)
    before = pods_of(model)
    model.preempt()
    model.settle()
    assert model.notice is not None
    model.withdraw()
    model.settle()
    assert model.notice is None
    go_on(model)
    assert (model.job.status.phase, pods_of(model)) == (Phase.RUNNING, before)


CORDONS = st.lists(
    st.tuples(
        st.sampled_from(["cordon", "uncordon", "reconcile", "save", "wait", "restart", "schedule"]),
        NODE,
    ),
    max_size=25,
)


@given(events=CORDONS, nodes=st.integers(1, 3), form=FORM)
@settings(max_examples=60, deadline=None)
def test_cordons_alone_never_take_a_member(
    events: list[tuple[str, str]], nodes: int, form: str
) -> None:
    """Without another node for it; see the next test for gangs that find one."""
    model = a_running_model(nodes=nodes, form=form)
    before = pods_of(model)
    own = tuple(pod.node for pod in model.pods.values())
    _play(model, events, schedulable=own)
    assert pods_of(model) == before
    assert not any(pod.terminating for pod in model.pods.values())
    status = model.job.status
    assert (status.generation, status.phase) == (1, Phase.RUNNING)


@given(events=CORDONS, nodes=st.integers(1, 3), form=FORM)
@settings(max_examples=60, deadline=None)
def test_cordoned_members_give_their_nodes_up_for_other_nodes_only(
    events: list[tuple[str, str]], nodes: int, form: str
) -> None:
    model = a_running_model(nodes=nodes, form=form)
    _play(model, events, schedulable=NODES)
    status = model.job.status
    assert status.assignment is not None
    assert status.assignment.lost is None
    assert (status.generation == 1) or form == "trainer"


def _play(model: Model, events: list[tuple[str, str]], *, schedulable: tuple[str, ...]) -> None:
    for event, node in events:
        model.look()
        match event:
            case "cordon":
                model.cordon(node)
            case "uncordon":
                model.uncordon(node)
            case "save":
                model.save()
            case "wait":
                model.now += 400
            case "restart":
                model.restart_operator()
            case "schedule":
                model.schedule(schedulable)
            case _:
                pass
        model.settle()
        for pod in list(model.pods.values()):
            model.leave_node(pod)
            model.stand(pod)
        model.settle()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("spare", [False, True])
def test_a_drain_comes_to_its_end_and_the_job_goes_on_elsewhere(
    nodes: int, form: str, spare: bool
) -> None:
    model = a_running_model(nodes=nodes, form=form)
    model.train()
    drained = next(pod.node for pod in model.pods.values() if pod.index == 0)
    model.cordon(drained)
    usable = NODES if spare else tuple(pod.node for pod in model.pods.values())
    for _ in range(4):
        if model.drain(drained):
            break
        model.look()
        model.schedule(usable)
        model.settle()
        model.save()
        for pod in list(model.pods.values()):
            model.leave_node(pod)
            model.stand(pod)
    assert model.drain(drained)
    for _ in range(4):
        go_on(model)
        model.now += 5
    status = model.job.status
    assert (status.phase, status.restarts, status.budgets) == (Phase.RUNNING, 0, None)
    assert drained not in {pod.node for pod in model.pods.values()}
