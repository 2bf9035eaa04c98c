"""The agent: PID 1 of a pod of a TrainingJob. Standard library only; torch lives in its children.

The pieces, from the outside in:

    http_message, http_server, http_client   a small strict HTTP/1.1
    api                                      routes and their signatures
    record_book                              the newest generation record; which ones are refused
    fanout, departures                       what agents of a gang tell each other
    zygote, rank_main, zygote_client         one process imports torch, ranks are forked from it
    output, board, metrics                   what ranks print, how far they are
    gang                                     the ranks of this pod in one attempt, and their verdict
    run, join                                the two programs (`python -m drumline_trainer.agent`)

Invariants: ranks start only with a record signed with the job's token that names this pod's uid;
a lower or equal generation never replaces a higher one; no rank outlives its agent; the store
outlives every rank of the gang that can still be reached.
"""
