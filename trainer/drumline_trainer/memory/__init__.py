"""Less memory on the device: activations computed again (`recompute`), or tensors kept elsewhere.

Offload keeps what the device does not work on in the host's memory or in a file: `offload_store`
says where, `offloaded_optimizer` and `offloaded_activations` move it. FSDP2 moves the weights
(`parallelism.data_parallel.fsdp`). Whatever is moved comes back bit for bit.
"""
