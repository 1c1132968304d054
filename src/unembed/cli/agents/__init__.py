"""`unembed mcp`: offer the commands to agents as tools, over the Model Context Protocol."""
