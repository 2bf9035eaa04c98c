"""Snapshots in the memory of a pod: which it holds, copies to a peer, fetching from one."""
