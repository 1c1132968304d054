"""`unembed trace` and its terminal, HTML and file output."""
