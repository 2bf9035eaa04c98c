"""`drumline shell` without a job: a job of one pod whose command is a shell, and its terminal.

The pod's own terminal (`template.tty`), not an exec into it: a connection that is lost takes
nothing with it, `drumline shell NAME` comes back to the same prompt, and the job ends with its
shell. One that nobody uses ends with the exit code `IDLE`, for which the operator suspends the job.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from drumline_cli.cluster_access import chosen_credentials, cluster_client
from drumline_cli.commands import Output
from drumline_cli.errors import BadInput
from drumline_cli.formatting import many
from drumline_cli.job_yaml import job_yaml
from drumline_cli.jobs import command as jobs
from drumline_cli.jobs.command import random_letters, say
from drumline_cli.jobs.follow import read_job
from drumline_cli.jobs.inside import ChosenCluster, attach_arguments, become_kubectl
from drumline_cli.jobs.terminal_pod import wait_for_terminal
from drumline_cli.run.manifests import RunRequest, job_manifest
from drumline_cli.run.request import image_of, pairs, resources_of
from drumline_cli.run.submission import (
    QUEUE_VARIABLE,
    check_dry_run,
    create_job,
    only_queue,
    secret_variables,
    warn,
)
from drumline_cli.run.variables import values_of, variables_of, whole_secrets
from drumline_cli.validation import check
from drumline_contract import ExitCode

Json = dict[str, Any]

IDLE_VARIABLE: Final = "SHELL_IDLE_SECONDS"
_GRACE_SECONDS: Final = 5
"""An interactive bash ignores SIGTERM."""
_SHELL: Final = f"""\
if ! command -v bash >/dev/null; then
  echo "this image has no bash: no idle shell is suspended"
  sh
  exit 0
fi
file=$(mktemp)
cat >"$file" <<'END'
if [ -r ~/.bashrc ]; then . ~/.bashrc; fi
TMOUT=${IDLE_VARIABLE}
drumline_before=$(printf '%s\\n' "${{PROMPT_COMMAND[@]}}")
unset PROMPT_COMMAND
PROMPT_COMMAND="$drumline_before
drumline_prompt_at=\\$SECONDS"
PS0+='${{PS0:0:$((drumline_prompt_at = -1, 0))}}'
drumline_end() {{
  ((TMOUT > 0 && drumline_prompt_at >= 0 && SECONDS - drumline_prompt_at + 1 >= TMOUT)) || exit 0
  echo
  echo "this shell is idle: its job is suspended, and its GPUs go back."
  echo "Files on claims stay, everything else here is gone. drumline shell JOB begins a new one."
  exit {ExitCode.IDLE.value}
}}
trap drumline_end EXIT
END
exec bash --rcfile "$file"
"""
"""TMOUT ends bash after this number of seconds at the prompt without input. It is not exported,
because `read` in scripts would use it too. The exit code of the last command is not a failure.

bash does not report that TMOUT ended it. The script assumes it if a prompt was shown for TMOUT
seconds. bash (since 4.4) expands PS0 when it has read a line. PS0 then resets the prompt's time, so
`exit` does not look like TMOUT."""


def run(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    """Create the job, wait for its pod, and become kubectl at its terminal.

    With the name of a job, open the shell in a pod of that job instead.

    Raises:
        CommandError: something is missing, the cluster refuses, or the job ends before it starts.
    """
    # With a job name the command only connects.
    if chosen.job is not None:
        return jobs.run(chosen, environment)
    # Phase 1: everything that needs no cluster.
    queue = chosen.queue or environment.get(QUEUE_VARIABLE) or ""
    request = shell_request(chosen, environment, queue=queue, letters=random_letters())
    warn(request.warnings)
    whole = whole_secrets(chosen)
    if chosen.dry_run:
        check_dry_run(queue, whole)
        return Output(text=job_yaml([shell_manifest(request, idle_seconds=chosen.idle)]))
    # kubectl could not attach, and the shell would hold its GPUs until it is idle.
    if not sys.stdin.isatty():
        raise BadInput(
            "a new shell needs a terminal, and standard input is none; drumline run runs a command"
        )
    credentials = chosen_credentials(chosen, environment)
    namespace = chosen.namespace or credentials.namespace

    async def start() -> str:
        async with cluster_client(credentials) as client:
            manifest = shell_manifest(request, idle_seconds=chosen.idle)
            # The only queue of the cluster is the default, as for `drumline run`.
            manifest["spec"]["queue"] = queue or await only_queue(client)
            # Keys of whole Secrets are known only to the cluster.
            secrets = await secret_variables(client, whole, namespace=namespace)
            manifest["spec"]["template"]["env"] += secrets
            check(manifest)
            await create_job(client, manifest, (), namespace=namespace, say=say)
            say(
                f"trainingjob {namespace}/{request.name}: {many(request.gpus, 'GPU')}; it ends"
                f" with its shell. Connect again: drumline shell {request.name} -n {namespace}"
            )
            if chosen.idle and not chosen.command_line:
                say(
                    f"after {chosen.idle} s at its prompt without input it is suspended: files on"
                    " claims are kept, all other files of its pod are lost"
                )
            # Read the job again for its uid and its first status.
            raw = await read_job(client, job=request.name, namespace=namespace)
            return await wait_for_terminal(client, raw, say=say)

    try:
        # Waiting may take long. The job keeps its place after Ctrl-C.
        pod = asyncio.run(start())
    except KeyboardInterrupt:
        return Output(
            text="\n"
            f"{request.name} keeps waiting. drumline shell {request.name} -n {namespace}"
            " connects to it, --delete deletes it\n"
        )
    return _attach(pod, chosen, namespace=namespace)


def _attach(pod: str, chosen: argparse.Namespace, *, namespace: str) -> NoReturn:
    cluster = ChosenCluster.of(chosen, namespace=namespace)
    become_kubectl(cluster, attach_arguments(pod, terminal=sys.stdin.isatty()))


def shell_request(
    chosen: argparse.Namespace, environment: Mapping[str, str], *, queue: str, letters: str
) -> RunRequest:
    """Return the request for a shell.

    Args:
        chosen: parsed arguments.
        environment: environment variables.
        queue: queue from the command line.
        letters: random letters of the name.

    Raises:
        BadInput: the image is missing, or an argument is not valid or needs a job.
    """
    if chosen.rank is not None or chosen.delete:
        raise BadInput("no job is given, but --rank and --delete need one: drumline shell JOB")
    options = {
        "gpuPool": chosen.pool,
        "priorityClassName": chosen.priority,
        "user": chosen.user,
    }
    env, warnings = values_of(chosen.env, environment)
    return RunRequest(
        name=chosen.name or f"shell-{letters}",
        namespace=chosen.namespace,
        queue=queue,
        image=image_of(chosen.image, environment),
        nodes=1,
        gpus=chosen.gpus,
        command=tuple(chosen.command_line) or ("sh", "-c", _SHELL),
        # `Direct` runs the command without an agent, so the terminal belongs to the shell.
        launch="Direct",
        env=env,
        variables=variables_of(chosen),
        warnings=warnings,
        claims=pairs(chosen.claim, option="--claim", form="NAME=/FOLDER"),
        resources=resources_of(chosen.resources),
        options={name: value for name, value in options.items() if value},
    )


def shell_manifest(request: RunRequest, *, idle_seconds: int) -> Json:
    """Return the TrainingJob of a shell. 0 seconds: it is never idle."""
    manifest = job_manifest(request, None)
    template = manifest["spec"]["template"]
    template["tty"] = True
    template["terminationGracePeriodSeconds"] = _GRACE_SECONDS
    idle = {"name": IDLE_VARIABLE, "value": str(idle_seconds)}
    template["env"] = [idle, *template.get("env", [])]
    # Files on a claim survive, so the shell starts there.
    if request.claims:
        template["workingDir"] = request.claims[0][1]
    return manifest
