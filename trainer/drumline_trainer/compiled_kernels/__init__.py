"""Kernels that torch.compile made of the layers, kept beside the checkpoints.

    <folder of this machine>/<program>/            torch's own cache: graphs, kernels, libraries
    <checkpoints>/kernels/<program>/0-0.kernels    the same as one signed file

A rank compiles into a folder of its machine that only its user can write to. After the first step
the first pod of each stage packs that folder and signs it. A new pod without that folder unpacks
the kept file, and compiles nothing.

torch loads pickles and machine code from its folder, and other jobs of the namespace may write to
the claim of the checkpoints. So no byte of a kept file is parsed before its signature is verified,
with a key that belongs to the job (`signing_key`). Files that are rejected, missing or unreadable
are compiled again. Nothing here ends a run.
"""
