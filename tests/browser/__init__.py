"""The explorer in a real browser. `checks.py` lists what every screen must do, `faults.py` what once went wrong."""
