"""Render the pages behind a job's buttons, which explain and confirm each action.

The forms are plain and work without JavaScript. They are not reloaded while a user types.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from drumline.overview.objects import ClusterObjects
from drumline_api.conditions import Phase
from drumline_api.objects import builtin
from drumline_cli.formatting import many
from drumline_cli.job_yaml import job_yaml
from drumline_cli.jobs.named_job import NamedJob
from drumline_cli.markup import Markup, element, joined
from drumline_cli.report.job_input import JobInput
from drumline_console.ui.links import action_path, beside_path, other_size_path
from drumline_console.ui.parts import document, post_form

# A page with thousands of options would be slow.
MOST_CLASSES: Final = 200
UP: Final = "../../../"
"""Path from `job/NAMESPACE/NAME/ACTION` to the overview."""
NAME_PATTERN: Final = "[a-z]([-a-z0-9]{0,48}[a-z0-9])?"


def job_buttons(job_input: JobInput) -> Markup:
    """Render the actions for a job. An ended job can only be copied and deleted."""
    status = job_input.job.status
    ended = status is not None and status.finished_at is not None
    job = _named(job_input)
    links = {"Clone": action_path(job.name, "clone"), "Delete": action_path(job.name, "delete")}
    # An ended job has no priority and no size to change.
    if not ended:
        question = other_size_path(job.key, nodes=job_input.job.spec.nodes)
        links = {
            "Priority": action_path(job.name, "priority"),
            "What if\N{HORIZONTAL ELLIPSIS}": f"../../{question}",
            **links,
        }
    asked = (element("a", words, href=target, class_="button") for words, target in links.items())
    return element("div", Markup("") if ended else _suspend(job_input), *asked, class_="actions")


def delete(job_input: JobInput) -> str:
    """Render the confirmation of a deletion."""
    job = _named(job_input)
    nodes = job_input.job.spec.nodes * job_input.job.spec.gpus_per_node
    content = (
        element("h1", f"Delete {job.key}?"),
        element(
            "p",
            f"Its pods stop within their grace period, and its {many(nodes, 'GPU')} become"
            " available to other jobs. Checkpoints stay on their claim. The report and the"
            " events are deleted with the job, unless an archive keeps them. To continue the job"
            " later, suspend it instead.",
            class_="lead",
        ),
        post_form(
            "delete",
            # The uid belongs to the form, so a newer job of the name is safe.
            _hidden("uid", job_input.uid),
            element("button", f"Delete {job.name}", class_="danger"),
            _back(job),
        ),
    )
    return _document(job, f"Delete {job.key}", content)


def priority(job_input: JobInput, cluster: ClusterObjects) -> str:
    """Render the choice of a PriorityClass."""
    job = _named(job_input)
    now = job_input.job.spec.priority_class_name
    content = (
        element("h1", f"Priority of {job.key}"),
        element(
            "p",
            "The position in the queue changes immediately. While a job holds its nodes, a"
            " change can lower its protection from preemption, but never raise it. A queue may"
            " limit the priority, and a class may need the right to use it.",
            class_="lead",
        ),
        post_form(
            "priority",
            element("label", "Priority class ", priority_choice(cluster.priorities, chosen=now)),
            element("button", "Change it"),
            _back(job),
        ),
    )
    return _document(job, f"Priority of {job.key}", content)


def clone(job: NamedJob, manifest: dict[str, Any], *, changes: Sequence[str]) -> str:
    """Render the manifest of a copy, to read, save or create.

    Args:
        job: namespace, name and uid of the job.
        manifest: manifest of the copy.
        changes: changes that the user entered.
    """
    name = str(manifest["metadata"]["name"])
    lines = "\n".join(changes)
    content = (
        element("h1", f"Copy of {job.key}"),
        element(
            "form",
            element("label", "Name ", _name_field(name)),
            element(
                "label",
                "Changes, one per line, such as nodes=2 or trainer.steps=500 ",
                element("textarea", lines, name="changes", rows=4, cols=40, spellcheck="false"),
            ),
            element("button", "Show it"),
            # GET shows the changed manifest without creating anything.
            method="get",
            class_="fields",
        ),
        element(
            "pre", job_yaml([manifest]), tabindex="0", class_="manifest", aria_label="Manifest"
        ),
        post_form(
            "clone",
            _hidden("name", name),
            _hidden("changes", lines),
            element("button", f"Create {name}"),
            _back(job),
        ),
    )
    return _document(job, f"Copy of {job.key}", content)


def priority_choice(
    classes: Iterable[builtin.PriorityClass], *, chosen: str | None, empty: str = "the default"
) -> Markup:
    """Render a field for a PriorityClass: a list, or a text field if they may not be listed.

    Args:
        classes: PriorityClasses. Empty: they may not be listed.
        chosen: name of the present class.
        empty: text of the choice without a class.
    """
    # High values first, because users look for a higher priority.
    by_value = sorted(classes, key=lambda each: (-each.value, each.metadata.name))[:MOST_CLASSES]
    if not by_value:
        return element("input", name="priority", value=chosen or "", maxlength=253)
    options = [("", empty)]
    options += [
        (each.metadata.name, f"{each.metadata.name} ({each.value})")
        for each in by_value
        # These classes belong to the cluster, and the API would reject them.
        if not each.metadata.name.startswith("system-")
    ]
    return element(
        "select",
        *(
            element("option", words, value=value, selected="" if value == (chosen or "") else None)
            for value, words in options
        ),
        name="priority",
    )


def _suspend(job_input: JobInput) -> Markup:
    status = job_input.job.status
    rests = status is not None and status.phase == Phase.SUSPENDED
    # An idle suspension sets no field, so the phase decides too.
    action = "resume" if job_input.job.spec.suspend or rests else "suspend"
    words = "Resume" if action == "resume" else "Suspend: save, and release its GPUs"
    target = action_path(job_input.name, action)
    return element("form", element("button", words), method="post", action=target)


def _named(job_input: JobInput) -> NamedJob:
    return NamedJob(namespace=job_input.namespace, name=job_input.name)


def _document(job: NamedJob, title: str, content: Iterable[Markup]) -> str:
    back = element("a", f"\N{LEFTWARDS ARROW} {job.key}", href=beside_path(job.name))
    return document(title, joined(element("nav", back), *content), up=UP, script=None)


def _back(job: NamedJob) -> Markup:
    return element("a", "No", href=beside_path(job.name), class_="button")


def _hidden(name: str, value: str) -> Markup:
    return element("input", type="hidden", name=name, value=value)


def _name_field(name: str) -> Markup:
    return element(
        "input", name="name", value=name, required="", pattern=NAME_PATTERN, spellcheck="false"
    )
