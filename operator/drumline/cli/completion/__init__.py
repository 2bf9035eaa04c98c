"""`drumline completion`: scripts for shells, made from the parser itself."""
