"""The only room with Kopf: triggers, work queue, reconciler, cache, scheduler loop, app."""
