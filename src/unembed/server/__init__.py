"""The explorer: a local web page for analysing predictions, editing activations, and labelling memories and heads.

`app.create` makes the FastAPI application; `state.ServerState` stores the loaded model and index; `model_queue` runs
the model on one thread; `routes/` defines the API, with a file for each screen; `static/` contains the page.
"""
