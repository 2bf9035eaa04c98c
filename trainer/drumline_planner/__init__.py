"""The planner: from a model and a cluster to the layout that trains fastest, with its figures.

It is pure and needs the standard library alone, so the operator can ask it, too. It measures
nothing itself: figures follow from the hardware tables in `drumline_contract.hardware` and the
constants in `constants`. No figure of a published run is stored as an answer.

    network             links and collectives by latency and bandwidth
    setup               a model on a layout: everything that memory and time depend on
    activations, memory the memory of a rank, line by line
    work, pipeline_schedules,
    step_time           the parts of a step, their order and their duration
    search              the best legal layouts
    calibration, score  the few global constants, and the error of predictions

`drumline_contract.layout_validation` alone decides which layouts are legal.

Start with `memory.memory_of` and `step_time`, then `search`.

Data: a model's shape and a machine -> `setup` -> memory and step time -> `search` -> a layout.
"""
