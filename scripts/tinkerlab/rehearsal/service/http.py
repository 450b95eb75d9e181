"""Reading requests and writing replies, the same way in every route."""

from __future__ import annotations

import json
import math
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse

from tinkerlab.rehearsal.errors import Unprocessable
from tinkerlab.rehearsal.service import wire
from tinkerlab.rehearsal.service.state import State

Parsed = TypeVar("Parsed", bound=BaseModel)


def state_of(request: Request) -> State:
    return request.app.state.rehearsal


async def read_body(request: Request) -> bytes:
    """The request's body, decompressed.

    Raises:
        Unprocessable: over the size bound, or not the declared encoding.
    """
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > wire.MAX_BODY_BYTES:
            raise Unprocessable(f"the body is over {wire.MAX_BODY_BYTES} bytes")
        parts.append(part)
    body = b"".join(parts)
    encoding = request.headers.get("content-encoding", "identity")
    if encoding == "zstd":
        return wire.decompress(body)
    if encoding != "identity":
        raise Unprocessable(f"content-encoding {encoding!r} is not supported: send zstd or none")
    return body


async def read_json(request: Request) -> dict[str, Any]:
    """The body as a JSON object.

    Raises:
        Unprocessable: anything else.
    """
    body = await read_body(request)
    try:
        document = json.loads(body or b"{}", parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Unprocessable(f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise Unprocessable(f"the body is a JSON {type(document).__name__}, not an object")
    return document


async def read(request: Request, model: type[Parsed]) -> Parsed:
    """The body as one of the SDK's request types.

    Raises:
        Unprocessable: it doesn't validate; the message lists each field and reason.
    """
    document = await read_json(request)
    try:
        return model.model_validate(document)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        reasons = (f"{'.'.join(map(str, d['loc'])) or 'body'}: {d['msg']}" for d in details)
        raise Unprocessable("; ".join(reasons)) from None
    except (RecursionError, OverflowError) as error:
        raise Unprocessable(f"the body can't be read: {error}") from None


def reply(document: BaseModel | dict[str, Any], status: int = 200) -> JSONResponse:
    if isinstance(document, BaseModel):
        document = document.model_dump(mode="json")
    return JSONResponse(document, status)


def page_of(request: Request, default: int = 20) -> tuple[int, int]:
    """``offset`` and ``limit`` of a listing.

    Raises:
        Unprocessable: not whole numbers in range.
    """
    values = []
    for name, fallback, low, high in (("offset", 0, 0, 2**31), ("limit", default, 1, 1000)):
        text = request.query_params.get(name, str(fallback))
        try:
            value = int(text)
        except ValueError:
            value = -1
        if not low <= value <= high:
            raise Unprocessable(f"{name}: {text!r} is not a whole number from {low} to {high}")
        values.append(value)
    return values[0], values[1]


def require_finite(**numbers: float | None) -> None:
    """Raise ``Unprocessable`` for a NaN or an infinity."""
    for name, value in numbers.items():
        if value is not None and not math.isfinite(value):
            raise Unprocessable(f"{name} is {value}")


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")
