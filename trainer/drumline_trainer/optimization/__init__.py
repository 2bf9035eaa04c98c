"""How weights change: parameter groups, the learning rate, the clipped gradient."""
