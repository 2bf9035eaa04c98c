"""The workers that take keys from the queue, and the one place where a reconcile may fail."""

from __future__ import annotations

import asyncio
import time

from drumline.controller.reconciler.executor import RetryLater
from drumline.controller.reconciler.reconciler import Reconciler
from drumline.controller.reconciler.work_queue import WorkQueue
from drumline.kube.errors import Conflict, KubeError, NotLeader
from drumline.telemetry import logs
from drumline.telemetry.metrics import Metrics

log = logs.get("drumline.controller.reconciler.workers")


async def work(*, queue: WorkQueue, reconciler: Reconciler, metrics: Metrics) -> None:
    """Reconcile key after key; never returns.

    Raises:
        NotLeader: this process may not write any more.
    """
    while True:
        # A queue that is full hands keys out without a pause, and a plan without an action takes
        # none: ten thousand keys at the start of a term would keep the first decision waiting.
        await asyncio.sleep(0)
        key = await queue.get()
        started = time.perf_counter()
        try:
            delay = await reconciler.reconcile(key)
            queue.forget(key)
            if delay is not None:
                queue.add_after(key, delay)
            elif not reconciler.knows(key):
                queue.drop(key)
        except RetryLater as later:
            queue.add_after(key, later.seconds)
        except Conflict:  # the watch shows what was missed, mostly within milliseconds
            queue.retry(key)
        except NotLeader:
            raise
        except KubeError as error:
            delay = queue.retry(key)
            metrics.controller.reconcile_errors.labels(kind=type(error).__name__).inc()
            log.warning("reconcile_failed", job=key, error=str(error), retry_in_seconds=delay)
        except Exception as error:  # one poisoned object must not stop the others
            delay = queue.retry(key)
            metrics.controller.reconcile_errors.labels(kind=type(error).__name__).inc()
            log.exception("reconcile_crashed", job=key, retry_in_seconds=delay)
        finally:
            metrics.controller.reconcile_seconds.observe(time.perf_counter() - started)
            queue.done(key)
