"""What a cycle of the scheduling engine costs, without any cluster: `make bench WHAT=engine`.

Each figure stands beside its goal and, where a peer has published one for the same shape, beside
the peer's own figure. Most of theirs were measured with an API server and on more cores: they say
how far away a shape is, not how much faster one scheduler is than another.
"""
