"""The processes of a pod: the zygote, the ranks forked from it, the rendezvous store."""
