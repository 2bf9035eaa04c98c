"""Single-device models. Nothing here knows about ranks, meshes or checkpoints."""
