"""The agent: PID 1 of a pod of a TrainingJob. Standard library only; its children import torch.

The packages, from the top layer to the bottom:

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

Invariants:

* Ranks start only with a record that is signed with the job's token and names this pod's uid, in an
  attempt that all its members have prepared.
* A lower or equal membership never replaces a higher one.
* No rank outlives its agent.
* The leader, and with it the store, ends last of its gang.
* Only a new generation declares a member lost. Silence is shown, never acted on.
"""
