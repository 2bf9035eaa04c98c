"""Draw external events of a cluster from a seed: failures, spot reclaims, prices.

They are drawn before a simulation and independently for each node, so that every policy meets the
same events.
"""
