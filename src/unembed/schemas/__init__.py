"""The content of every surface, as typed frozen values: the command line's `--json`, the explorer's API, notebooks."""
