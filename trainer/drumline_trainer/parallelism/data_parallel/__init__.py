"""Data parallelism: ranks that see different samples, from DDP to parameter servers.

`apply` chooses among DDP, ZeRO-1, ZeRO-2, FSDP and HSDP. Parameter servers replace what sums
gradients between nodes; local SGD sums no gradients at all, only weights every few steps.
"""
