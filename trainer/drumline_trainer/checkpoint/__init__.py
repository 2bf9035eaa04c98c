"""Sharded checkpoints that are verified before a byte of them is used. No pickle on any path.

A checkpoint is a folder `step-00000100` with one or two safetensors files per rank, `manifest.json`
(which tensor pieces lie in which file, digests and sizes of the files, the trainer's own state) and
`manifest.sha256` (the digest of the manifest, in the format of `sha256sum`). It becomes visible by
one rename after every rank has reported what it wrote, so a folder of that name is complete; its
digests alone decide whether it is still intact, and a missing digest counts as a wrong one. In a
bucket the same files are made visible by one conditional put (`bucket`). Writing goes on during
training (`background_save`).
"""
