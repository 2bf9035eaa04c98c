"""The agent: PID 1 of a pod of a TrainingJob. Standard library only; its children import torch.

The rooms, from the top of the layers to the bottom:

    programs    run (trainer pods) and join (pods with a custom template); the pod's exit
    leader      rounds, hang detection, root causes, restart budgets, restore plans
    member      obeys the leader, reports heartbeats and faults, saves on SIGTERM
    processes   zygote, ranks, their output, the rendezvous store
    snapshots   the ranks' snapshots, copies for a peer, fetching
    api         routes and their signatures, metrics, delivery of records, departures
    state       the agent's status, its record, incidents, notices
    protocol    messages between the agents of a gang
    http        a small strict HTTP/1.1
    base        settings, events, outcomes

Invariants: ranks start only with a record signed with the job's token that names this pod's uid, in
an attempt that all its members have prepared; a lower or equal membership never replaces a higher
one; no rank outlives its agent; the leader, and with it the store, ends as the last of its gang.
Only a new generation says that a member is lost: silence is shown, never acted on.
"""
