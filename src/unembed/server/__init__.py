"""The explorer: a web page served on this machine, on which a prediction can be taken apart, edited and labelled.

`app.create` makes the FastAPI application over a `state.ServerState`; `model_queue` runs the model on one thread;
`routes/` holds the API, a file for each screen; `static/` holds the page.
"""
