"""The routes of the API, with a file for each screen of the page."""
