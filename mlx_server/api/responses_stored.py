"""What can be done with a response after it was asked for: read it, end it, delete it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response

from mlx_server.api.open_requests import OpenRequests
from mlx_server.api.parameters import unsupported
from mlx_server.api.responses import keep_response
from mlx_server.api.responses_answer import ResponseAnswer, ResponseFrames
from mlx_server.api.responses_store import ResponseStore
from mlx_server.api.run import Run
from mlx_server.api.wire_json import json_response
from mlx_server.errors import InvalidRequest, RequestCancelled, ResponseNotFound
from mlx_server.responses_wire import DeletedResponse, Item, ItemList

MAX_LISTED = 100


def stored_responses_router(open_requests: OpenRequests, store: ResponseStore) -> APIRouter:
    router = APIRouter(tags=["responses"])

    @router.get("/responses/{response_id}")
    async def get_response(
        response_id: str, stream: bool = False, starting_after: int | None = None
    ) -> Response:
        """A response as it is stored, or as far as it has come."""
        if stream:
            raise unsupported("stream", (False,))
        if starting_after is not None:
            raise unsupported("starting_after")
        now = running(open_requests, response_id)
        if now is not None:
            return json_response(now.answer.body())
        stored = await asyncio.to_thread(store.get, response_id)
        if stored is None:
            raise ResponseNotFound
        return json_response(stored.response)

    @router.delete("/responses/{response_id}")
    async def delete_response(response_id: str) -> Response:
        """Forget a response; those that went on from it cannot be continued any more."""
        if not await asyncio.to_thread(store.delete, response_id):
            raise ResponseNotFound
        deleted: DeletedResponse = {"id": response_id, "object": "response", "deleted": True}
        return json_response(deleted)

    @router.post("/responses/{response_id}/cancel")
    async def cancel_response(response_id: str) -> Response:
        """End a response that is in progress."""
        now = running(open_requests, response_id)
        if now is not None and now.run.cancel():
            now.answer.response.fail(RequestCancelled())
            await keep_response(now.answer, store)
            return json_response(now.answer.body())
        if now is None and await asyncio.to_thread(store.get, response_id) is None:
            raise ResponseNotFound
        raise InvalidRequest("Only a response that is in progress can be cancelled.")

    @router.get("/responses/{response_id}/input_items")
    async def list_input_items(
        response_id: str,
        limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 20,
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
    ) -> Response:
        """The items of a response's own request, without those of the responses before it."""
        now = running(open_requests, response_id)
        stored = None if now else await asyncio.to_thread(store.get, response_id)
        if now is not None:
            items: Sequence[Item] = now.answer.response.asked.input
        elif stored is not None:
            items = stored.input
        else:
            raise ResponseNotFound
        return json_response(page(items if order == "asc" else items[::-1], after, limit))

    return router


@dataclass(frozen=True, slots=True)
class RunningResponse:
    run: Run
    answer: ResponseAnswer | ResponseFrames


def running(open_requests: OpenRequests, response_id: str) -> RunningResponse | None:
    for run in open_requests:
        sink = run.sink
        if sink.answer_id == response_id and isinstance(sink, ResponseAnswer | ResponseFrames):
            return RunningResponse(run, sink)
    return None


def page(items: Sequence[Item], after: str | None, limit: int) -> ItemList:
    ids = [item["id"] for item in items]
    if after is not None and after not in ids:
        raise InvalidRequest("`after` must be the id of one of the items.", param="after")
    begin = 0 if after is None else ids.index(after) + 1
    shown = items[begin : begin + limit]
    return {
        "object": "list",
        "data": list(shown),
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": begin + limit < len(items),
    }
