"""`drumline top`: the cluster on one screen."""
