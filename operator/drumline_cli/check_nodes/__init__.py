"""`drumline check-nodes`: idle nodes of a pool check themselves and each other, as a job."""
