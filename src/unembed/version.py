"""The version of the package. It is a separate module so that any room can import it."""

__version__ = "0.1.0"
