"""The composition root: the process, leader election, and the wiring of a leader's components."""
