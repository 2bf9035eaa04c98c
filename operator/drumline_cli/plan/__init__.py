"""`drumline plan`: from a model and a cluster to a layout."""
