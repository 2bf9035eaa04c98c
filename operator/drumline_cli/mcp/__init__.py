"""`drumline mcp`: the read-only commands as tools of the Model Context Protocol."""
