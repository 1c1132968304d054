"""How tests check types at run time: shapes of tensors by jaxtyping, and all else that a signature says by beartype.

An import hook decorates every function, method and dataclass of the package. Jaxtyping's own hook does so too, but it
compiles a check of every local function each time the enclosing function runs, looks for shapes in signatures that
have none, and checks each argument twice; these were two thirds of the time of many tests. Here beartype checks all,
each letter of a shape standing for one size during a call, and a local function is only checked for its shapes (pyright
checks its types).

The words that a person types (points, bases, kinds) are strings to it, so that a wrong one reaches the package's own
refusal, which names the right ones.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import sys
import typing
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import cache_from_source
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar
from unittest.mock import patch

import jaxtyping
from beartype import BeartypeConf, FrozenDict, beartype

from unembed import names

Node = TypeVar("Node", bound=ast.AST)
_WORDS = [value for value in vars(names).values() if typing.get_origin(value) is typing.Literal]
_CONF = BeartypeConf(hint_overrides=FrozenDict(dict.fromkeys(_WORDS, str)), violation_type=TypeError)
_beartype: Any = beartype(conf=_CONF)


def install(package: str) -> None:
    """Check the types of every module of a package that is imported from now on."""
    sys.meta_path.insert(0, _Finder(package))


def checked(of: Any) -> Any:
    """Check a function's signature, or that of a dataclass' `__init__`."""
    if isinstance(of, type):
        if dataclasses.is_dataclass(of):
            of.__init__ = checked(of.__init__)
        return of
    hints = {name: _hint(hint, of.__globals__) for name, hint in of.__annotations__.items()}
    has_shapes = any(map(_has_shape, hints.values()))
    if has_shapes and inspect.isgeneratorfunction(of):  # whose body runs after the call
        return jaxtyping.jaxtyped(of, typechecker=_beartype)
    resolved = FunctionType(of.__code__, of.__globals__, of.__name__, of.__defaults__, of.__closure__)
    resolved.__kwdefaults__, resolved.__qualname__ = of.__kwdefaults__, of.__qualname__
    resolved.__module__, resolved.__annotations__ = of.__module__, hints
    by_beartype = _beartype(resolved)
    if not has_shapes:
        return functools.update_wrapper(by_beartype, of)

    def with_sizes(*arguments: Any, **named: Any) -> Any:
        with jaxtyping.jaxtyped("context"):  # where each letter of a shape has one size
            return by_beartype(*arguments, **named)

    return functools.update_wrapper(with_sizes, of)


def checked_shapes(local: Any) -> Any:
    """Check the shapes in a local function's signature."""
    if local.__code__ in _WITHOUT_SHAPES:
        return local
    if any(_has_shape(_hint(hint, local.__globals__)) for hint in local.__annotations__.values()):
        return checked(local)
    _WITHOUT_SHAPES.add(local.__code__)
    return local


_WITHOUT_SHAPES: set[CodeType] = set()


def _hint(hint: object, namespace: dict[str, Any]) -> Any:
    """What an annotation names; anything, where it names what only a type checker imports."""
    if not isinstance(hint, str):
        return hint
    try:
        return eval(hint, namespace)
    except (NameError, AttributeError, TypeError):
        return Any


def _has_shape(hint: Any) -> bool:
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(map(_has_shape, hint if isinstance(hint, list) else typing.get_args(hint)))


class _Decorated(ast.NodeTransformer):
    """Checks as the innermost decorator of each function, and the outermost of each class."""

    def __init__(self) -> None:
        self._inside = False

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        node.decorator_list.insert(0, _decorator(checked))
        self.generic_visit(node)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.decorator_list.append(_decorator(checked_shapes if self._inside else checked))
        return self._local(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AsyncFunctionDef:
        """Leave a coroutine as it is: uvicorn looks at its signature to learn which protocol it speaks."""
        return self._local(node)

    def _local(self, node: Node) -> Node:
        inside, self._inside = self._inside, True
        self.generic_visit(node)
        self._inside = inside
        return node


def _decorator(function: Callable[[Any], Any]) -> ast.expr:
    """The expression that names a function of this module in any other."""
    load = ast.Load()
    modules = ast.Attribute(ast.Call(ast.Name("__import__", load), [ast.Constant("sys")], []), "modules", load)
    return ast.Attribute(ast.Subscript(modules, ast.Constant(__name__), load), function.__name__, load)


class _Loader(SourceFileLoader):
    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:  # type: ignore[override]
        tree = _Decorated().visit(ast.parse(data, path))
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True, optimize=_optimize)

    def get_code(self, fullname: str) -> CodeType | None:
        """The decorated code, from a compiled file of its own beside the usual one."""
        with patch("importlib._bootstrap_external.cache_from_source", _compiled):
            return super().get_code(fullname)


def _compiled(path: str) -> str:
    return cache_from_source(path, optimization="checked5")


class _Finder(MetaPathFinder):
    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._package and not fullname.startswith(f"{self._package}."):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec
