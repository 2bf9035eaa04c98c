"""Drumline beside other gang schedulers, in turns on one control plane and the same fake nodes.

`__main__` runs the shapes, `baseline` Kueue's own test. `objects` writes what each peer is given,
`programs` starts and stops the peers, `ratios` compares. Peers get the most favourable setting that
they have: no webhooks, high limits of requests, and plain pods where a job object is optional.
"""
