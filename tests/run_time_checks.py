"""How tests check types at run time: shapes of tensors and all else that a signature says, by beartype.

The words that a person types (points, bases, kinds) are strings to it, so that a wrong one reaches the package's own
refusal, which names the right ones.
"""

from __future__ import annotations

import typing

from beartype import BeartypeConf, FrozenDict, beartype

from unembed import names

_WORDS = [value for value in vars(names).values() if typing.get_origin(value) is typing.Literal]
checked = beartype(conf=BeartypeConf(hint_overrides=FrozenDict(dict.fromkeys(_WORDS, str))))
