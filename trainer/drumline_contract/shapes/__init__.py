"""What follows from the shape of a model alone: operations, stages, other formats. No torch."""
