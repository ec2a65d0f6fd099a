"""The version of the library, kept here so that packaging can read it."""

__version__ = "0.1.0"
