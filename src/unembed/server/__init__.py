"""The explorer: a local web page for analysing predictions, editing the model and labelling its parts.

`app.create` makes the FastAPI application over a `state.ServerState`; `model_queue` runs the model on one thread;
`routes/` holds the API, a file for each screen; `static/` holds the page.
"""
