"""The Ray engine of a sweep: workers, the driver that gives them jobs, and the transfer of models and results."""
