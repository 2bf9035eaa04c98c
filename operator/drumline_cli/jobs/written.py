"""Read the logs of a job's pods so far, in order of time."""

from __future__ import annotations

from drumline.kube import errors
from drumline.kube.client import KubeClient
from drumline_cli.jobs.follow import CONTAINER, LogLine, started_pods, stream_log
from drumline_cli.jobs.log_selection import LogSelection
from drumline_contract import plain


async def written_lines(
    client: KubeClient, selection: LogSelection, *, uid: str, namespace: str
) -> list[LogLine]:
    """Return the selected lines of all pods. One without a time says that a pod's log is gone.

    Args:
        client: the cluster.
        selection: which lines are wanted.
        uid: UID of the job.
        namespace: namespace of the job.

    Raises:
        NotAnswered: the pods cannot be read.
    """
    lines: list[LogLine] = []

    def take(line: LogLine) -> None:
        if selection.keeps(line):
            lines.append(line)

    for pod in await started_pods(client, uid=uid, namespace=namespace):
        if selection.index not in (None, pod.index):
            continue
        # Init containers have no lines with the tag of a rank.
        containers = () if selection.tag else pod.init_containers
        for container in (*containers, *((CONTAINER,) if pod.has_begun else ())):
            try:
                await stream_log(
                    client,
                    pod,
                    namespace=namespace,
                    since=selection.since,
                    follow=False,
                    take=take,
                    container=container,
                )
            except errors.StatusError as error:  # it went between the two questions
                text = f"no log of {pod.name}: {plain(error.message)}"
                lines.append(LogLine(at="", index=pod.index, text=text))
    # Sorting is stable, so lines of one moment keep the order of the pods.
    return sorted(lines, key=lambda line: line.at)
