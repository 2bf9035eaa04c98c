"""The agent: PID 1 of a pod of a TrainingJob. Standard library only; torch lives in its children.

The pieces, from the outside in:

    http_message, http_server, http_client, streams   a small strict HTTP/1.1, and files over it
    api, gang_routes                      routes and their signatures
    record_book, fanout                   the newest generation record, and how it reaches everyone
    zygote, rank_main, zygote_client      one process imports torch, ranks are forked from it
    rank_process, gang, rank_faults       this pod's ranks over all attempts: rest, resume, end
    snapshots, transfers                  the ranks' snapshots, copies for another pod, fetching
    member, uplink                        a pod's part: obeys the leader, beats, reports faults
    leader, rounds, roster, watchman      the leader's part: rounds, who is silent, who hangs
    faults, culprits, hangs, incidents    what to make of it: classes, budgets, blame, the log
    notices, termination                  saving on request, and before the pod has to go
    output, board, metrics                what ranks print, how far they are
    run, join                             the two programs (`python -m drumline_trainer.agent`)

Invariants: ranks start only with a record signed with the job's token that names this pod's uid, in
an attempt that all its members answered; a lower or equal membership never replaces a higher one;
no rank outlives its agent; the leader, and with it the store, ends as the last of its gang. Only a
new generation tells that a member is lost: silence is shown, never acted on.
"""
