"""Serve the cluster as a page on the user's machine, with the user's kubeconfig: `drumline ui`."""
