"""The planner: from a model and a cluster to a layout, with the bill shown. Pure, no torch.

    hardware, network   what a cluster can do: GPUs, links, collectives by alpha and beta
    setup               a model on a layout: everything that memory and time depend on
    activations, memory the bill of a rank, line by line
    work, schedules,
    step_time           what a step does, in which order, and how long it takes
    search              the best legal layouts, exactly, within this model
    calibration, score  the few global constants, and how far predictions are off

Legality is `layout_validation`'s alone: the planner proposes, and never trains what that refuses.
Every figure of a prediction follows from the tables in `hardware` and the constants in
`constants`; no prediction, and nothing of a published run, is stored.
"""
