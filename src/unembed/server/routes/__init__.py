"""The API, a file for each screen's questions."""
