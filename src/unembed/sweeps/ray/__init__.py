"""The Ray engine: workers, the driver that schedules them, and how models and states travel."""
