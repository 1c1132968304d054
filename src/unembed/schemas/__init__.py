"""What every surface shows, as typed frozen values: the command line's `--json`, the explorer's API, notebooks."""
