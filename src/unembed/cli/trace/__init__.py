"""`unembed trace`: the command, and its output in the terminal, as HTML, JSON and CSV."""
