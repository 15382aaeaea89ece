"""GET /v1/requests, and DELETE for one of them: what is being answered, and its end."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter

from mlx_server.api.open_requests import OpenRequests
from mlx_server.api.run import Run
from mlx_server.errors import RequestNotFound
from mlx_server.models import DeletedRequest, RequestList, RequestObject


def request_list_router(open_requests: OpenRequests) -> APIRouter:
    router = APIRouter(tags=["requests"])

    @router.get("/requests")
    async def list_requests() -> RequestList:
        """All requests that are waiting or being answered, the oldest first."""
        return RequestList(data=[request_object(run) for run in open_requests])

    # Clients choose the ids in their headers, and some have slashes.
    @router.delete("/requests/{request_id:path}")
    async def cancel_request(request_id: str) -> DeletedRequest:
        """End a request, by its `x-request-id` or by the id of its answer."""
        if not open_requests.cancel(request_id):
            raise RequestNotFound
        return DeletedRequest(id=request_id)

    return router


def request_object(run: Run) -> RequestObject:
    sink = run.sink
    usage = sink.usage()
    return RequestObject(
        id=sink.answer_id,
        request_id=run.request_id,
        model=sink.model or None,
        state=state_of(run),
        num_prompt_tokens=usage["prompt_tokens"] if sink.has_started else None,
        num_completion_tokens=usage["completion_tokens"],
        age_s=round(run.age_s, 3),
    )


def state_of(run: Run) -> Literal["queued", "loading", "prefill", "decode"]:
    if run.sink.has_started:
        return "decode"
    progress = run.progress()
    return progress.stage if progress is not None else "queued"
