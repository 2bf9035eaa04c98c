"""The whole cluster in the operator's memory: joins the objects, builds snapshots.

Informers update it, and scheduler and reconciler read it. It never writes to the API server.
"""
