"""How weights change: the clipped gradient, the learning rate, the rule of the update."""
