"""The explorer: a web page served on this machine, on which a prediction can be taken apart, edited and labelled.

`app.create` makes the FastAPI application; `worker` runs the model on one thread; `static/` holds the page.
"""
