"""What happens to a cluster from outside, drawn from a seed: failures, spot reclaims, prices.

It is drawn before a simulation and for each node by itself, so every policy meets the same.
"""
