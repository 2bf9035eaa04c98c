"""Simulate a workload against the operator's scheduler on a virtual clock. Optional.

It answers questions about policies, quotas and cluster sizes before a change. Its decisions are
those of `drumline_scheduler.decide`, the operator's own code; it has no model of the scheduler.
`peers` plays the same workload as other systems would.

`input` reads clusters and traces, `engine` advances time from event to event, `conditions` adds
faults and spot reclaims, `results` computes waits, usage and cost. `week` is the published week of
docs/simulated-week.md. `simulate` and `export_trace` are its commands.

The engine is pure: it accesses no file, clock or network; `simulate.study` does. It starts no pods
and says nothing about training speed beyond what its input says.

Start with `engine.simulation`, then `simulate.study`.

Data: a cluster file and a trace -> `engine.simulation` -> an outcome -> tables, charts and JSON.
See docs/simulation.md.
"""
