"""Routes by declaration: the cache key is the function and its arguments, and nothing else."""

from __future__ import annotations

from unembed.server import requests as r
from unembed.server.handlers import Routes, cache_key
from unembed.server.routes.heads import post_pattern, post_patterns


def test_equal_requests_have_one_key_and_different_ones_have_others() -> None:
    def key(**fields) -> str:
        return cache_key(post_patterns, {"query": r.PromptRequest.model_validate({"prompt": "a b", **fields})})

    edit = {"action": "set", "layer": 1, "index": 2, "value": 3.0}
    assert key(edits=[edit]) == key(edits=[{**edit, "target": "coefficient", "positions": "all"}])
    keys = [key(), key(prompt="a  b"), key(edits=[edit]), key(edits=[{**edit, "value": 4}]), key(edits=[edit, edit])]
    assert len({*keys}) == len(keys)


def test_functions_with_the_same_arguments_have_different_keys() -> None:
    arguments = {"layer": 1, "head": 2}
    assert cache_key(post_pattern, arguments) != cache_key(post_patterns, arguments)
    assert cache_key(post_pattern, arguments) != cache_key(post_pattern, arguments, depends_on=1)


def test_a_route_is_named_and_described_by_its_function() -> None:
    routes = Routes("tests")

    @routes.answer("GET /twice/{number}", "doubling")
    def get_twice(state: r.State, number: int) -> dict[str, int]:
        """Twice a number."""
        return {"twice": 2 * number}

    (route,) = routes.routes
    assert (route.path, route.methods, route.name) == ("/twice/{number}", {"GET"}, "get_twice")
    assert route.description == "Twice a number."
