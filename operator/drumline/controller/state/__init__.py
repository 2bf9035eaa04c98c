"""What the operator keeps in memory of the cluster.

Fed by the informers' events, read by scheduler and reconciler; nothing here writes to the API
server.
"""
