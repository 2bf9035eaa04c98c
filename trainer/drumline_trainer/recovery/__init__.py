"""Recovery in the rank's process: rendezvous, leaving a broken gang, snapshots, checkpoints."""
