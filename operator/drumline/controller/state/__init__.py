"""The whole cluster as the operator sees it: joins the objects, makes snapshots.

Informers feed it; scheduler and reconciler read it. Nothing here writes to the API server.
"""
