"""Context parallelism: each rank has some positions of every sequence; attention is a ring."""
