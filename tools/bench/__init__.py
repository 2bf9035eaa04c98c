"""`make bench`: figures beside the raw limit of the same run and the peers' published ones."""
