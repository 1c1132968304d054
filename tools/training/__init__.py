"""How the shipped models are made: vocabulary, networks, optimiser, loop, export.

`tools.train_models` runs all of it on a folder of `*.jsonl.xz` (one JSON object with a `text` a line), and
`tools.train_wikilm` trains a small WikiLM. Interrupted runs resume from their last checkpoint.
"""
