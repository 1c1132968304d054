"""A module without what only people need: comments, indents, spaces beside punctuation.

It cuts and never rewrites. Texts, templates and patterns are left as they are; none may run over several lines.
"""

from __future__ import annotations

import re

_COMMENT = re.compile(r"^[ ]*(?:/\*\*.*?\*/|//[^\n]*)\n", re.MULTILINE | re.DOTALL)
_SPACES = re.compile(r" *([=,:;{}()\[\]?&|<>*]) *")
_NEXT = re.compile(r"""["'`{}/]""")
_TEXT = re.compile(r"""(["'])(?:(?!\1)[^\\]|\\.)*\1""")
_PATTERN = re.compile(r"/(?:[^/\\\[]|\\.|\[(?:[^\]\\]|\\.)*\])+/\w*")
_TEMPLATE = re.compile(r"(?:[^`\\$]|\\.|\$(?!\{))*(?:`|\$\{)")


def light(text: str) -> str:
    """The module, line by line."""
    return "".join(f"{_line(line.lstrip(' '))}\n" for line in _COMMENT.sub("", text).splitlines())


def _line(line: str) -> str:
    kept: list[str] = []
    inside: list[int] = []  # for each template that is open: braces open in its current insertion
    begin = at = 0

    def leave(found: re.Match[str] | None) -> int:
        """Keep the code before a place as it may be cut, and what was found as it is."""
        assert found is not None, line
        kept.extend([_SPACES.sub(r"\1", line[begin : found.start()]), found[0]])
        return found.end()

    while (mark := _NEXT.search(line, at)) is not None:
        at, what = mark.end(), mark[0]
        before = line[: mark.start()].rstrip()
        if what in "\"'":
            begin = at = leave(_TEXT.match(line, mark.start()))
        elif what == "/" and line.startswith("/", at):
            begin = at = leave(re.compile(".*").match(line, mark.start()))
        elif what == "/" and (not before or before[-1] in "(,=:[!&|?{};>" or before.endswith("return")):
            begin = at = leave(_PATTERN.match(line, mark.start()))
        elif what == "`" or (what == "}" and inside and inside[-1] == 0):
            begin = at = leave(mark)
            found = _TEMPLATE.match(line, at)
            assert found is not None, line
            kept.append(found[0])
            begin = at = found.end()
            if what == "}":
                inside.pop()
            if found[0].endswith("${"):
                inside.append(0)
        elif inside and what in "{}":
            inside[-1] += 1 if what == "{" else -1
    return "".join(kept) + _SPACES.sub(r"\1", line[begin:])
