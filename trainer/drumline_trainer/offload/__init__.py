"""Offload: what the device does not work on lies in the host's memory or in a file.

`home` says where that is, `optimizer` and `activations` what comes and goes; weights are FSDP2's to
move (`parallelism.fsdp`). Whatever is moved comes back bit for bit.
"""
