"""What the end of a pod means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline.lifecycle.incidents.failures import (
    Failure,
    FailureClass,
    classify,
    counts_as_failed_start,
    final_report,
    refused_by_kubelet,
    root_cause,
)
from drumline.lifecycle.model.observed import PodEnd
from drumline_contract import ExitCode
from tests.builders import a_job, a_pod, admitted, ended, report

JOB = admitted(a_job())
OUTGROWN = "Pod ephemeral local storage usage exceeds the total limit of containers 16Mi."


def outgrown(*, exit_code: int | None) -> PodEnd:
    """Of a pod that its kubelet evicted for its own use of the disk."""
    return replace(ended(exit_code=exit_code, reason="Evicted"), own_limit=f"{OUTGROWN} ")


def failure_of(**facts: Any) -> Failure | None:
    return classify(a_pod(JOB, 0, **facts))


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"ready": True, "ip": "10.0.0.1"},
        {"waiting": "ImagePullBackOff"},
        {"end": ended()},
        {"end": ended(), "terminating": True},
    ],
)
def test_what_works_or_went_well_is_no_failure(facts: dict[str, Any]) -> None:
    assert failure_of(**facts) is None


@pytest.mark.parametrize(
    ("facts", "failure_class"),
    [
        ({"terminating": True}, FailureClass.INFRASTRUCTURE),
        ({"end": ended(exit_code=1), "terminating": True}, FailureClass.INFRASTRUCTURE),
        ({"end": ended(exit_code=137, reason="Evicted")}, FailureClass.INFRASTRUCTURE),
        ({"end": outgrown(exit_code=137)}, FailureClass.APPLICATION),
        ({"end": outgrown(exit_code=None)}, FailureClass.APPLICATION),
        ({"end": ended(exit_code=143, reason="NodeShutdown")}, FailureClass.INFRASTRUCTURE),
        ({"end": ended(exit_code=143, reason="Terminated")}, FailureClass.INFRASTRUCTURE),
        ({"end": ended(exit_code=1, reason="Preempting")}, FailureClass.INFRASTRUCTURE),
        ({"end": ended(exit_code=None)}, FailureClass.INFRASTRUCTURE),
        ({"end": ended(exit_code=None, reason="NodeLost")}, FailureClass.INFRASTRUCTURE),
        ({"end": ended(exit_code=None, reason="OutOfcpu")}, FailureClass.REFUSED),
        ({"end": ended(exit_code=None, reason="OutOfnvidia.com/gpu")}, FailureClass.REFUSED),
        ({"end": ended(exit_code=None, reason="NodePorts")}, FailureClass.REFUSED),
        ({"end": ended(exit_code=None, reason="SysctlForbidden")}, FailureClass.REFUSED),
        ({"end": ended(exit_code=None, reason="NodeAffinity")}, FailureClass.REFUSED),
        (
            {"end": ended(exit_code=137, reason="UnexpectedAdmissionError")},
            FailureClass.REFUSED,
        ),
        ({"end": ended(exit_code=None, reason="TopologyAffinityError")}, FailureClass.REFUSED),
        ({"end": ended(exit_code=None, reason="UnexpectedAdmissionError")}, FailureClass.REFUSED),
        ({"end": ended(exit_code=ExitCode.CONFIG)}, FailureClass.CONFIGURATION),
        ({"end": ended(exit_code=ExitCode.CORRUPT_CHECKPOINT)}, FailureClass.CORRUPT_CHECKPOINT),
        ({"end": ended(exit_code=ExitCode.PEER_LOST)}, FailureClass.PEER_LOST),
        ({"end": ended(exit_code=ExitCode.DEVICE)}, FailureClass.DEVICE),
        ({"end": ended(exit_code=1)}, FailureClass.APPLICATION),
        ({"end": ended(exit_code=137)}, FailureClass.KILLED),
        ({"end": ended(exit_code=143)}, FailureClass.KILLED),
        ({"end": ended(exit_code=137, reason="OOMKilled")}, FailureClass.OUT_OF_MEMORY),
        ({"end": ended(exit_code=ExitCode.PREEMPTED)}, FailureClass.LEFT_ON_REQUEST),
        (
            {"end": ended(exit_code=ExitCode.PREEMPTED), "terminating": True},
            FailureClass.LEFT_ON_REQUEST,
        ),
        ({"end": ended(exit_code=139)}, FailureClass.APPLICATION),
    ],
)
def test_every_end_has_its_class(facts: dict[str, Any], failure_class: FailureClass) -> None:
    failure = failure_of(**facts)
    assert failure is not None
    assert failure.failure_class is failure_class
    assert failure.message.startswith("pod llama-0-g1 on node-a ")


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (ended(exit_code=1, message=report(error="rank 3: boom")), "exited with 1: rank 3: boom"),
        (ended(exit_code=1, message=report(error="")), "exited with 1"),
        (ended(exit_code=2, message="usage: train"), "exited with 2: usage: train"),
        (ended(exit_code=137, reason="OOMKilled"), "exited with 137 (OOMKilled)"),
        (ended(exit_code=1, reason="Error"), "exited with 1"),
        (
            ended(exit_code=None, reason="OutOfcpu", message="requested: 4"),
            "was rejected by the kubelet: OutOfcpu: requested: 4",
        ),
        (outgrown(exit_code=137), f"was evicted because it exceeded its own limit: {OUTGROWN}"),
    ],
)
def test_the_sentence_carries_the_last_words(end: Any, said: str) -> None:
    failure = failure_of(end=end)
    assert failure is not None
    assert failure.message == f"pod llama-0-g1 on node-a {said}"


def test_a_node_under_pressure_refuses_pods_and_evicts_none() -> None:
    """The kubelet gives both the reason Evicted. The pod has exceeded nothing."""
    why = "Pod was rejected: The node had condition: [DiskPressure]. "
    end = ended(exit_code=None, reason="Evicted", message=why)
    failure = failure_of(end=end)
    assert failure is not None
    assert failure.failure_class is FailureClass.REFUSED
    assert refused_by_kubelet(end)
    assert not counts_as_failed_start(end)
    forged = ended(exit_code=1, reason="Error", message=why)
    assert not refused_by_kubelet(forged), "the program wrote it"


def test_last_words_are_bounded_whatever_they_are() -> None:
    failure = failure_of(end=ended(exit_code=None, reason="x", message="y" * 4000))
    assert failure is not None
    assert len(failure.message) == 1500


def test_half_a_character_in_the_last_words_is_replaced() -> None:
    words = '{"progress": {"step": 1, "total_steps": 2}, "error": "bad \\ud800 text"}'
    failure = failure_of(end=ended(exit_code=1, message=words))
    assert failure is not None
    assert failure.message.endswith("exited with 1: bad ? text")
    assert failure.message.encode()


@pytest.mark.parametrize("message", ["", "no json", "[]", '{"progress": 3}', "{" * 5000])
def test_other_text_is_no_report(message: str) -> None:
    assert final_report(ended(message=message)) is None


def test_the_root_cause_is_the_most_explanatory_failure() -> None:
    ends = {
        FailureClass.CONFIGURATION: ended(exit_code=ExitCode.CONFIG),
        FailureClass.CORRUPT_CHECKPOINT: ended(exit_code=ExitCode.CORRUPT_CHECKPOINT),
        FailureClass.REFUSED: ended(exit_code=None, reason="OutOfcpu"),
        FailureClass.INFRASTRUCTURE: ended(exit_code=None, reason="Evicted"),
        FailureClass.APPLICATION: ended(exit_code=1),
        FailureClass.PEER_LOST: ended(exit_code=ExitCode.PEER_LOST),
    }
    wanted = list(ends)
    failures = [failure_of(end=end) for end in ends.values()]
    while failures:
        cause = root_cause([each for each in failures if each is not None])
        assert cause.failure_class is wanted.pop(0)
        failures.remove(cause)


def test_of_equals_the_lowest_name_speaks() -> None:
    failures = [classify(a_pod(JOB, index, end=ended(exit_code=1))) for index in (1, 0)]
    assert root_cause([each for each in failures if each is not None]).pod == "llama-0-g1"
