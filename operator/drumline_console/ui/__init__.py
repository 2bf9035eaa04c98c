"""Runs `drumline ui`: the cluster as a page on the own machine, with the own kubeconfig."""
