"""The only room with Kopf: process, work queue, reconciler, cache, scheduler loop, app."""
