"""Fifty questions about models, with known answers, for an agent that has the tools of `unembed mcp`.

    python -m benchmarks.questions make FOLDER          # write the changed copies of wren that some questions are about
    python -m benchmarks.questions list FOLDER          # print the questions, one JSON object a line, without the answers
    python -m benchmarks.questions grade FILE           # check an agent's answers: lines of {"id": ..., "answer": ...}
    python -m benchmarks.questions replay FOLDER        # make the reference calls and check that all questions are answered

The answer to a question is known without the tools: it was planted in a copy of `wren`, or computed with transformers alone
(tests/benchmarks/test_questions.py does it again), or it is a published property of SmolLM2. `questions.jsonl` has each
question with its model, its answer, the calls that answer it, and where in their answers the answer stands.
"""
