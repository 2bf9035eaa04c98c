"""`check-nodes`: what each node of a gang computes, remembers and sends, beside the others."""
