"""Results that depend only on a model's shape: operations, stages, other formats. No torch."""
