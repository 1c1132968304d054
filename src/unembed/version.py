"""The version of the package. It has its own module, so that every module can import it without a cycle."""

__version__ = "0.1.0"
