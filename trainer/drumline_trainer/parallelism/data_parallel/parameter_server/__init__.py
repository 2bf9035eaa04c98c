"""Parameter servers: weights are updated where they lie, workers push gradients and pull weights.

servers         who serves, which rows of the weights each of them has, the ranks of a node
synchronous     one update a step from the sum of all pushes
asynchronous    each push is applied when it comes
clocks          how far workers may drift apart
"""
