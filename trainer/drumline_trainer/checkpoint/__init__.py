"""Sharded checkpoints that are verified before a byte of them is used. No pickle on any path.

A checkpoint is a folder `step-00000100` with one or two safetensors files per rank, `manifest.json`
(the file of each tensor piece, digests and sizes of the files, the trainer's own state) and
`manifest.sha256` (the digest of the manifest, in the format of `sha256sum`). It becomes visible by
one rename after every rank has reported its files, so a folder of that name is complete. Its
digests decide whether it is still intact, and a missing digest counts as a wrong one. In a bucket
the same files become visible by one conditional put (`bucket`). Writing continues during training
(`background_save`).
"""
