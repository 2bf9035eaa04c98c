"""Use Drumline in a notebook: jobs, queues and reasons as values that show themselves as cards.

::

    import drumline_console.notebook as dl

    cluster = dl.connect(namespace="team")
    job = cluster.run(["python", "train.py"], nodes=2, gpus=8, image="pytorch/pytorch:2.9.1")
    job.wait().report()

Everything is read and written with the rights of the kubeconfig, as `drumline` does it. What the
cluster refuses is a `CommandError`, whose text is the sentence that the command line would print.
"""

from __future__ import annotations

from drumline_cli.errors import BadInput, CommandError, NotAnswered
from drumline_console.notebook.connection import NotebookConnection, connect
from drumline_console.notebook.job import NotebookJob
from drumline_console.notebook.views import JobLog, JobTable, QueueTable, ReportView, WhyView

__all__ = [
    "BadInput",
    "CommandError",
    "JobLog",
    "JobTable",
    "NotAnswered",
    "NotebookConnection",
    "NotebookJob",
    "QueueTable",
    "ReportView",
    "WhyView",
    "connect",
]
