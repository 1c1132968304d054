"""The Ray engine: workers, the driver that schedules them, and the transfer of models and states."""
