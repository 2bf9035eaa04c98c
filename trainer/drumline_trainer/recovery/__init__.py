"""What lets a rank outlive its peers: orders from the agent, snapshots, and joining again."""
