"""Golden outputs: what every command, every route of the explorer's API and every report returns, saved and compared.

    python -m tests.golden compare                 # everything; exit status 1 if something differs
    python -m tests.golden compare --only 'trace'  # the cases whose name the regular expression finds
    python -m tests.golden save --only 'cli/help'  # take what the code returns now as expected
    python -m tests.golden compare --list          # the names of the cases; runs nothing

A case is one command, one request or one report; its name says which: `cli/wren/trace`, `api/gated/GET memories`,
`report/wren/geva2021`. Each has several outputs (`json`, `csv`, `text`, ...), and `compare` prints a short unified
diff for every output that differs. Words must be equal; numbers may differ by 1e-4 of their size, or by 1e-6. A
change that is intended is saved with `save --only`, so that the commit shows which outputs changed.

The outputs lie in `tests/golden/expected`, one compressed file for each group of cases. The models are the shipped ones
and `gated`, a small random Llama with grouped queries and wren's tokenizer. All cases run in one process and one
temporary folder, with relative paths, on one thread. What differs from run to run (dates, seconds, versions, the
folder) is replaced by a word. Not run: `train`, `serve` and the tables of `doctor`, of which only the help and refusals
are compared.

To add a case, add a row to `commands.py`, `requests.py` or `studies.py`, and `save --only` its name.
"""
