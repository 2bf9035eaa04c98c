"""All tests, part by part, as CI and `make test` run them.

Parts run side by side in two lanes, since most of them leave one of two cores idle; those on real
nodes, which have deadlines, run beside one another alone. Each writes to a file of its own under
`build/suite`, which is printed when the part has ended, in the order of the table; until then a
line says how far each part is.
"""
