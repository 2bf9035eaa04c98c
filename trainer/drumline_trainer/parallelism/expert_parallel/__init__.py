"""Expert parallelism: each rank has some of the experts; rows of tokens travel to them."""
