"""Show the cluster on one screen: `drumline top`."""
