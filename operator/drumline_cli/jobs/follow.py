"""Follows a job until it ends: why it waits, then what its pods write.

The job and its pods are read again every second or two, so a lost connection and a pod that is
replaced need nothing of their own. A pod's log is resumed behind the last line that was shown.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from drumline.kube import errors, reads
from drumline.kube.client import KubeClient
from drumline.kube.kinds import PODS, TRAINING_JOBS
from drumline.kube.line_splitter import Oversized, WatchLineSplitter
from drumline.kube.request import Request, Verb
from drumline_api.base import LABEL_INDEX, LABEL_JOB_UID
from drumline_cli.cluster_access import missing_job, not_answered, refusal
from drumline_cli.errors import NotAnswered, NotAnsweredYet
from drumline_cli.exit_codes import CommandExit
from drumline_contract import plain, plain_lines

Json = dict[str, Any]
Say = Callable[[str], None]

CONTAINER: Final = "trainer"
_BEGUN: Final = ("running", "terminated")
_OURS: Final = "drumline-"
"""Names of the init containers that the operator adds begin so."""
MAX_PODS: Final = 64
"""Maximum number of pods whose logs are followed at once. Each needs a connection through the API
server."""
PATIENCE_SECONDS: Final = 300.0
"""Seconds for which the API server may be unavailable, such as during a restart, before following
ends."""
_PAUSE_SECONDS: Final = 1.0
_SILENCE_SECONDS: Final = 3600.0
"""Seconds without log lines after which the log is requested again."""
_LAST_LINES_SECONDS: Final = 10.0
"""Seconds to wait for the end of the logs after the job has ended."""
_MAX_LINE_BYTES: Final = 64 * 1024
_AGENT_LINE: Final = re.compile(r'\{"time":"[^"]{20,40}","event":"')
ROUTINE_EVENTS: Final = frozenset(
    {
        "agent_started",
        "agent_ready",
        "record_accepted",
        "record_delivered",
        "round_begun",
        "ranks_started",
        "rank_exited",
        "finished",
        "standby_ready",
        "checkpoint_reported",
        "gang_files_written",
    }
)
"""Events of the agent that say nothing new if a job starts and ends as it should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line of a pod's log with its time, as the kubelet wrote it."""

    at: str
    index: str
    text: str

    @property
    def shown(self) -> str:
        """The line with the index of its pod, fit for a terminal."""
        return f"[{self.index}] {plain_lines(self.text)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedPod:
    """A pod that has a log."""

    name: str
    index: str
    is_running: bool
    has_begun: bool = True
    """True if the container that trains has a log."""
    init_containers: tuple[str, ...] = ()
    """Init containers with a log: the job's own, and others if they failed."""


async def follow_job(client: KubeClient, *, job: str, namespace: str, say: Say) -> int:
    """Print the events of a job until it ends.

    Args:
        client: the cluster.
        job: its name.
        namespace: its namespace.
        say: prints a line.

    Returns:
        The exit code: DONE if the job succeeded, JOB_FAILED otherwise.

    Raises:
        NotAnswered: the job or its pods cannot be read.
        Exception: what `say` raised.
    """
    # Each container has one stream at most. The dictionary also bounds the connections.
    streams: dict[str, asyncio.Task[None]] = {}
    shown: dict[str, str] = {}
    # No patience for the first read: a wrong name must fail at once.
    last, patience = "", 0.0
    try:
        while True:
            raw, pods = await _seen(client, job=job, namespace=namespace, patience=patience)
            patience = PATIENCE_SECONDS
            # Before a stream that ended is asked for again.
            _raise_errors(streams)
            status = cast("Json", raw.get("status") or {})
            # Repeat a line only when it changes. Otherwise the terminal fills with equal lines.
            if (line := state_line(status)) != last:
                last = line
                say(line)
            for pod, container in _logs(pods):
                key = f"{pod.name}/{container}"
                is_new = key not in streams
                due = _is_due(streams.get(key), pod, container)
                # The limit applies to new logs only. A known log may always reconnect.
                if due and (not is_new or len(streams) < MAX_PODS):
                    follower = _PodFollower(
                        client=client, namespace=namespace, pod=pod, container=container, say=say
                    )
                    streams[key] = asyncio.create_task(follower.follow(shown))
            # The job can end before the kubelet has sent the last lines, so wait for them.
            if status.get("phase") in {"Succeeded", "Failed"}:
                if streams:
                    await asyncio.wait(streams.values(), timeout=_LAST_LINES_SECONDS)
                    _raise_errors(streams)
                done = status["phase"] == "Succeeded"
                # The exit code shows the result of the job, so that scripts can depend on it.
                return CommandExit.DONE if done else CommandExit.JOB_FAILED
            await asyncio.sleep(_PAUSE_SECONDS)
    finally:
        # Also after Ctrl-C: an open stream would keep the event loop alive.
        for stream in streams.values():
            stream.cancel()
        await asyncio.gather(*streams.values(), return_exceptions=True)


def _raise_errors(streams: Mapping[str, asyncio.Task[None]]) -> None:
    """Raise what ended a stream: its reader has gone, as in `logs -f | head`, or a fault."""
    for stream in streams.values():
        if stream.done():
            stream.result()


async def _seen(
    client: KubeClient, *, job: str, namespace: str, patience: float
) -> tuple[Json, list[StartedPod]]:
    """Return the job and its pods with a log, asked for again while the API server does not answer.

    Raises:
        NotAnswered: it refuses, or has not answered for `patience` seconds.
    """
    # The loop's clock never jumps, unlike the time of day.
    clock = asyncio.get_running_loop().time
    end = clock() + patience
    while True:
        try:
            raw = await read_job(client, job=job, namespace=namespace)
            uid = str(raw["metadata"]["uid"])
            return raw, await started_pods(client, uid=uid, namespace=namespace)
        except NotAnsweredYet:
            # The time without an answer starts at this call, so a slow server gets the whole time.
            if clock() >= end:
                raise
        await asyncio.sleep(_PAUSE_SECONDS)


async def read_job(client: KubeClient, *, job: str, namespace: str) -> Json:
    """Return the TrainingJob as it is now.

    Args:
        client: sends the requests.
        job: name of the job.
        namespace: namespace of the job.

    Raises:
        NotAnswered: there is none of this name, or it cannot be read.
    """
    try:
        return await reads.get_document(client, TRAINING_JOBS, name=job, namespace=namespace)
    except errors.NotFound as error:
        raise NotAnswered(missing_job(error, job=job, namespace=namespace)) from None
    except errors.KubeError as error:
        raise not_answered(error, what=f"trainingjob {namespace}/{job}") from None


async def started_pods(client: KubeClient, *, uid: str, namespace: str) -> list[StartedPod]:
    """Return the job's pods that have a log, by index.

    Args:
        client: sends the requests.
        uid: uid of the job.
        namespace: namespace of the job.

    Raises:
        NotAnswered: they cannot be read.
    """
    try:
        # The label contains the uid. A Pod of an earlier job with the same name does not match.
        listed = await reads.list_all(
            client, PODS, namespace=namespace, label_selector=f"{LABEL_JOB_UID}={uid}"
        )
    except errors.KubeError as error:
        raise not_answered(error, what=f"pods of namespace {namespace}") from None
    pods = (_started(reads.document(pod)) for pod in listed)
    # Index order is rank order, so lines of one moment are sorted like the ranks.
    return sorted(
        (pod for pod in pods if pod is not None), key=lambda pod: (int(pod.index), pod.name)
    )


async def stream_log(
    client: KubeClient,
    pod: StartedPod,
    *,
    namespace: str,
    since: str,
    follow: bool,
    take: Callable[[LogLine], None],
    container: str = CONTAINER,
) -> None:
    """Pass every line of a pod's log after `since` to `take`. Return at the log's end.

    Lines over 64 KiB are left out. Lines of an init container start with its name.

    Args:
        client: sends the requests.
        pod: the Pod and its index.
        namespace: namespace of the job.
        since: timestamp of the last line that is known.
        follow: whether to wait for more lines.
        take: receives each line.
        container: name of the container.

    Raises:
        KubeError: the request failed, or the connection ended.
    """
    # Timestamps come from the kubelet. They make the log resumable after a lost connection.
    query = {"container": container, "timestamps": "true"}
    query |= {"follow": "true"} if follow else {}
    # `sinceTime` has a resolution of one second, so repeated lines are filtered below.
    query |= {"sinceTime": since} if since else {}
    path = PODS.path(namespace=namespace, name=pod.name, subresource="log")
    request = Request(verb=Verb.WATCH, resource=PODS, path=path, query=query)
    splitter = WatchLineSplitter(max_line_bytes=_MAX_LINE_BYTES)
    async with client.stream(request, silence_seconds=_SILENCE_SECONDS) as chunks:
        async for chunk in chunks:
            for line in splitter.feed(chunk):
                # A very long line is usually binary output. It must not fill the memory.
                if isinstance(line, Oversized):
                    continue
                read = log_line(line, index=pod.index)
                if container != CONTAINER:
                    read = replace(read, text=f"[{container}] {read.text}")
                # Timestamps of equal precision compare as text.
                if read.at > since:
                    take(read)


def state_line(status: Json) -> str:
    """Return the phase, its reason and the expected start, as a line for a terminal."""
    phase = plain(str(status.get("phase") or "Pending"))
    message = plain(str(status.get("message") or ""))
    expected = plain(str(status.get("expectedStart") or ""))
    latest = plain(str(status.get("expectedStartBy") or ""))
    line = f"{phase}: {message}" if message else phase
    # Both figures are forecasts. The second one is the time of the 90th percentile.
    if phase == "Pending" and expected:
        line += f" (expected to start at about {expected}" + (f", by {latest})" if latest else ")")
    return line


@dataclass(frozen=True, slots=True, kw_only=True)
class _PodFollower:
    client: KubeClient
    namespace: str
    pod: StartedPod
    container: str
    say: Say

    async def follow(self, shown: dict[str, str]) -> None:
        """Show the pod's log behind what was shown, until it ends or breaks off."""
        key = f"{self.pod.name}/{self.container}"

        def take(line: LogLine) -> None:
            shown[key] = line.at
            if not is_routine(line.text):
                self.say(line.shown)

        try:
            await stream_log(
                self.client,
                self.pod,
                namespace=self.namespace,
                since=shown.get(key, ""),
                follow=True,
                take=take,
                container=self.container,
            )
        # The outer loop requests the log again, from the last line that was shown.
        except errors.Unreachable:
            return  # it is asked for again
        except errors.NotFound:
            return  # the pod was replaced
        # Another error, such as a missing right, cannot be repaired here. The user must see it.
        except errors.KubeError as error:
            what = f"log of pod {self.pod.name}"
            self.say(f"[{self.pod.index}] {refusal(error, what=what)}")


def _is_due(stream: asyncio.Task[None] | None, pod: StartedPod, container: str) -> bool:
    """Return whether a log must be requested, first or after it broke off."""
    # An init container runs only once, so its log is complete at the end of its stream.
    return stream is None or (stream.done() and pod.is_running and container == CONTAINER)


def _logs(pods: list[StartedPod]) -> list[tuple[StartedPod, str]]:
    """Return the pods and containers that have a log, init containers first."""
    return [
        (pod, container)
        for pod in pods
        # Init containers run first, so their lines come first.
        for container in (*pod.init_containers, *((CONTAINER,) if pod.has_begun else ()))
    ]


def _started(pod: Json) -> StartedPod | None:
    """Return the pod, if one of its containers has begun."""
    states = _states(pod, "containerStatuses")
    own = states.get(CONTAINER, {})
    has_begun = not own.keys().isdisjoint(_BEGUN)
    init_containers = tuple(
        name
        for name, state in _states(pod, "initContainerStatuses").items()
        if not state.keys().isdisjoint(_BEGUN)
        # The operator's own init containers are of interest only if they failed.
        and (not name.startswith(_OURS) or state.get("terminated", {}).get("exitCode"))
    )
    if not has_begun and not init_containers:
        return None
    index = str(pod["metadata"].get("labels", {}).get(LABEL_INDEX, ""))
    return StartedPod(
        name=str(pod["metadata"]["name"]),
        # A Pod without a valid index label still has a log, so show it as the first.
        index=index if index.isdecimal() else "0",
        is_running="running" in own,
        has_begun=has_begun,
        init_containers=init_containers,
    )


def _states(pod: Json, field: str) -> dict[str, Json]:
    """Return the states of a pod's containers by name."""
    statuses = cast("list[Json]", pod.get("status", {}).get(field) or [])
    return {str(each.get("name")): cast("Json", each.get("state") or {}) for each in statuses}


def is_routine(text: str) -> bool:
    """Return whether a line is an event of the agent in a start or an end without a fault.

    A restart (an attempt above 0) and an exit code other than 0 are not routine.

    Args:
        text: a line of a pod's log.
    """
    # The agent's lines begin so. Other lines are not parsed, because a script may print many.
    if not _AGENT_LINE.match(text):
        return False
    try:
        event = json.loads(text)
    except ValueError:
        return False
    faults = (event.get("attempt"), event.get("code"), event.get("exit_code"))
    return event.get("event") in ROUTINE_EVENTS and not any(faults)


def log_line(line: bytes, *, index: str) -> LogLine:
    """Return a line with the time that the kubelet has put before it."""
    # The kubelet separates the timestamp by one space. The text may contain more spaces.
    at, _, text = line.decode(errors="replace").partition(" ")
    return LogLine(at=at, index=index, text=text)
