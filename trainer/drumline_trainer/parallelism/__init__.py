"""Parallelism applied from outside the model: the mesh, the sharding, the collectives beside it."""
