"""What every surface shows, as plain frozen values: the command line's `--json`, the explorer's API, notebooks.

A view chooses, names and orders what the library returned. It computes nothing and draws nothing.
"""
