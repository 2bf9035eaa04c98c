"""Updates of weights: gradient clipping, the learning rate, the update rule."""
