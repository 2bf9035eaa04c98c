"""Starting ranks without an agent: on this machine, or as one rank of a launcher."""
