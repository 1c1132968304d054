"""Developers' scripts: run from the root of a checkout with `python -m tools.NAME`; no part of the package."""
