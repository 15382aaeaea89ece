"""What can be done with a response after it was asked for: read it, end it, delete it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response

from mlx_server.api.open_requests import OpenRequests
from mlx_server.api.parameters import unsupported
from mlx_server.api.responses import keep_response
from mlx_server.api.responses_answer import ResponseAnswer, ResponseFrames
from mlx_server.api.responses_store import ResponseStore, StoredResponse
from mlx_server.api.run import Run
from mlx_server.api.wire_json import json_response
from mlx_server.errors import InvalidRequest, RequestCancelled, ResponseNotFound
from mlx_server.responses_wire import DeletedResponse, Item, ItemList, ResponseObject

MAX_LISTED = 100


def stored_responses_router(open_requests: OpenRequests, store: ResponseStore) -> APIRouter:
    router = APIRouter(tags=["responses"])
    known = KnownResponses(open_requests, store)

    @router.get("/responses/{response_id}")
    async def get_response(
        response_id: str, stream: bool = False, starting_after: int | None = None
    ) -> Response:
        """A response as it is stored, or as far as it has come."""
        if stream:
            raise unsupported("stream", (False,))
        if starting_after is not None:
            raise unsupported("starting_after")
        return json_response(await known.response(response_id))

    @router.delete("/responses/{response_id}")
    async def delete_response(response_id: str) -> Response:
        """Forget a response; those that went on from it cannot be continued any more."""
        return json_response(await known.delete(response_id))

    @router.post("/responses/{response_id}/cancel")
    async def cancel_response(response_id: str) -> Response:
        """End a response that is in progress."""
        return json_response(await known.cancel(response_id))

    @router.get("/responses/{response_id}/input_items")
    async def list_input_items(
        response_id: str,
        limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 20,
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
    ) -> Response:
        """The items of a response's own request, without those of the responses before it."""
        items = await known.input(response_id)
        return json_response(page(items if order == "asc" else items[::-1], after, limit))

    return router


class KnownResponses:
    """Responses that are being written, and those in the store; raises ResponseNotFound for any
    other.
    """

    def __init__(self, open_requests: OpenRequests, store: ResponseStore) -> None:
        self._open_requests = open_requests
        self._store = store

    async def response(self, response_id: str) -> ResponseObject:
        for _, answer in self._running(response_id):
            return answer.body()
        return (await self._stored(response_id)).response

    async def input(self, response_id: str) -> Sequence[Item]:
        for _, answer in self._running(response_id):
            return answer.response.asked.input
        return (await self._stored(response_id)).input

    async def cancel(self, response_id: str) -> ResponseObject:
        running = self._running(response_id)
        for run, answer in running:
            if run.cancel():
                answer.response.fail(RequestCancelled())
                await keep_response(answer, self._store)
                return answer.body()
        if not running:
            await self._stored(response_id)
        raise InvalidRequest("Only a response that is in progress can be cancelled.")

    async def delete(self, response_id: str) -> DeletedResponse:
        if not await asyncio.to_thread(self._store.delete, response_id):
            raise ResponseNotFound
        return {"id": response_id, "object": "response", "deleted": True}

    def _running(self, response_id: str) -> list[tuple[Run, ResponseAnswer | ResponseFrames]]:
        """One at most."""
        return [
            (run, run.sink)
            for run in self._open_requests
            if run.sink.answer_id == response_id
            and isinstance(run.sink, ResponseAnswer | ResponseFrames)
        ]

    async def _stored(self, response_id: str) -> StoredResponse:
        stored = await asyncio.to_thread(self._store.get, response_id)
        if stored is None:
            raise ResponseNotFound
        return stored


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
