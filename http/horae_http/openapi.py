"""`/openapi.json` (OpenAPI 3.1), made of the route tables and of the Structs that check the requests.

Written nowhere by hand: what the document says is what the code does. Not here: the routes. Next to read: `routing.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final

import msgspec

from horae import wire
from horae_http.errors import KINDS
from horae_http.routing import ITEM, Route

_REF: Final = "#/components/schemas/{name}"
_ENCODINGS: Final = ("application/json", "application/msgpack")

Json = dict[str, Any]


def document(routes: Iterable[Route]) -> bytes:
    """The document, as JSON text."""
    table = tuple(routes)
    shapes = _shapes(table)
    schemas, components = msgspec.json.schema_components(shapes, ref_template=_REF)
    schema_of = dict(zip(shapes, schemas, strict=True))
    paths: Json = {}
    for route in table:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema_of, components)
    queries = {route.query.__name__ for route in table} | {"Empty"}
    content = {
        "openapi": "3.1.0",
        "info": {"title": "horae", "version": version("horae"), "description": _DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": {name: schema for name, schema in components.items() if name not in queries},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "responses": {"Problem": _problem()},
        },
    }
    return msgspec.json.encode(content)


_DESCRIPTION: Final = (
    "A job scheduler that is its own cluster. Any node answers any request. Bodies are JSON, or MessagePack with the "
    "same keys; unknown keys are errors; errors are `application/problem+json` (RFC 9457), whose stable `code` is one "
    "of: " + ", ".join(f"`{code}` ({kind.status})" for code, kind in KINDS.items()) + ". "
    f"A body has at most {wire.BODY_BYTES_MAX} bytes, in bulk calls {wire.BULK_BODY_BYTES_MAX} with items of at most "
    f"{wire.BODY_BYTES_MAX}, and no content encoding. A page of jobs or schedules ends early "
    f"after {wire.ANSWER_BYTES_MAX} bytes of payloads, results, progress, errors and the like: go on by `next_cursor`. "
    "After as many, a batch shows jobs that were there already without them."
)


def _shapes(table: tuple[Route, ...]) -> list[type]:
    found: dict[type, None] = {wire.Problem: None}
    for route in table:
        for shape in (route.request, route.query, *route.answers.values(), *route.events):
            if shape is not None:
                found[shape] = None
    return list(found)


def _operation(route: Route, schema_of: dict[type, Json], components: Json) -> Json:
    operation: Json = {
        "operationId": route.operation,
        "summary": route.summary,
        "parameters": [*_path_parameters(route), *_query_parameters(route, components)],
        "responses": {str(status): _response(status, shape, schema_of) for status, shape in route.answers.items()},
        "security": [] if route.role is None else [{"bearer": []}],
    }
    if route.events:
        data = {"anyOf": [schema_of[shape] for shape in route.events]}
        operation["responses"]["200"]["content"] = {"text/event-stream": {"schema": data}}
    operation["responses"]["default"] = {"$ref": "#/components/responses/Problem"}
    if route.role is not None:
        operation["x-horae-role"] = route.role
    if route.request is not wire.Empty:
        operation["requestBody"] = {
            "required": route.body_required,
            "description": f"At most {route.body_bytes_max} bytes.",
            "content": _content(schema_of[route.request]),
        }
    return operation


def _path_parameters(route: Route) -> list[Json]:
    if ITEM not in route.path:
        return []
    schema = msgspec.json.schema(wire.JobId)
    return [{"name": "id", "in": "path", "required": True, "schema": schema, "description": "Percent-encoded."}]


def _query_parameters(route: Route, components: Json) -> list[Json]:
    properties: Json = components[route.query.__name__]["properties"]
    return [{"name": name, "in": "query", "required": False, "schema": schema} for name, schema in properties.items()]


def _response(status: int, shape: type | None, schema_of: dict[type, Json]) -> Json:
    response: Json = {"description": HTTPStatus(status).phrase}
    if shape is not None:
        response["content"] = _content(schema_of[shape])
    return response


def _content(schema: Json) -> Json:
    return {encoding: {"schema": schema} for encoding in _ENCODINGS}


def _problem() -> Json:
    return {
        "description": "Anything that went wrong.",
        "content": {"application/problem+json": {"schema": {"$ref": _REF.format(name="Problem")}}},
    }
