"""Keeps responses for those who come back to them: the most recently used ones, in memory or in a
file.
"""

from __future__ import annotations

import itertools
import json
import logging
import sqlite3
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mlx_server.api.wire_json import to_json
from mlx_server.config import MIB
from mlx_server.responses_wire import Item, ResponseObject

logger = logging.getLogger(__name__)

MAX_RESPONSES = 1000
MAX_BYTES = 256 * MIB

# The number is that of the form: a file of another one is left alone.
FILE_NAME = "responses-1.sqlite3"
TABLES = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
PRAGMA foreign_keys = ON;
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY,
    used INTEGER NOT NULL,
    num_bytes INTEGER NOT NULL,
    response BLOB NOT NULL,
    input BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS responses_by_use ON responses (used, num_bytes);
CREATE TABLE IF NOT EXISTS items (
    id TEXT NOT NULL,
    response_id TEXT NOT NULL REFERENCES responses ON DELETE CASCADE,
    PRIMARY KEY (id, response_id)
);
CREATE INDEX IF NOT EXISTS items_by_response ON items (response_id);
"""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """`input` are the items of its own request, without those of the responses before it."""

    response: ResponseObject
    input: Sequence[Item]

    @property
    def id(self) -> str:
        return self.response["id"]


class ResponseStore:
    """All methods block, and may be called from any thread.

    What was not used for longest goes first when there are too many or they take too much.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        max_responses: int = MAX_RESPONSES,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._db = open_database(folder)
        weakref.finalize(self, self._db.close)
        (last_use,) = self._db.execute("SELECT COALESCE(MAX(used), 0) FROM responses").fetchone()
        self._uses = itertools.count(last_use + 1)

    def put(self, stored: StoredResponse) -> None:
        """A file that cannot be written costs no answer: the failure is logged."""
        response = to_json(stored.response).encode(errors="replace")
        own_input = to_json(stored.input).encode(errors="replace")
        row = (stored.id, next(self._uses), len(response) + len(own_input), response, own_input)
        items = [(item["id"], stored.id) for item in (*stored.input, *stored.response["output"])]
        try:
            with self._lock, self._db:
                self._db.execute("INSERT OR REPLACE INTO responses VALUES (?, ?, ?, ?, ?)", row)
                self._db.executemany("INSERT OR IGNORE INTO items VALUES (?, ?)", items)
                self._evict()
        except sqlite3.Error:
            logger.exception("A response could not be stored")

    def get(self, response_id: str) -> StoredResponse | None:
        with self._lock, self._db:
            return self._read(response_id)

    def conversation(self, response_id: str) -> list[StoredResponse] | None:
        """The response and all before it, the first one first; None if one of them is gone."""
        found: list[StoredResponse] = []
        wanted: str | None = response_id
        with self._lock, self._db:
            while wanted is not None:
                stored = self._read(wanted)
                if stored is None:
                    return None
                found.append(stored)
                wanted = stored.response["previous_response_id"]
        return found[::-1]

    def item(self, item_id: str) -> Item | None:
        """An item of any response's input or output."""
        with self._lock, self._db:
            query = "SELECT response_id FROM items WHERE id = ? LIMIT 1"
            row = self._db.execute(query, (item_id,)).fetchone()
            stored = None if row is None else self._read(row[0])
        if stored is None:
            return None
        items: list[Item] = [*stored.input, *stored.response["output"]]
        return next(item for item in items if item["id"] == item_id)

    def delete(self, response_id: str) -> bool:
        """False if there is none of that id."""
        with self._lock, self._db:
            gone = self._db.execute("DELETE FROM responses WHERE id = ?", (response_id,))
            return gone.rowcount > 0

    def _read(self, response_id: str) -> StoredResponse | None:
        query = "SELECT response, input FROM responses WHERE id = ?"
        row = self._db.execute(query, (response_id,)).fetchone()
        if row is None:
            return None
        self._db.execute(
            "UPDATE responses SET used = ? WHERE id = ?", (next(self._uses), response_id)
        )
        return StoredResponse(json.loads(row[0]), json.loads(row[1]))

    def _evict(self) -> None:
        query = "SELECT COUNT(*), COALESCE(SUM(num_bytes), 0) FROM responses"
        num_responses, total_bytes = self._db.execute(query).fetchone()
        while num_responses > self._max_responses or total_bytes > self._max_bytes:
            oldest = "SELECT id, num_bytes FROM responses ORDER BY used LIMIT 1"
            response_id, num_bytes = self._db.execute(oldest).fetchone()
            self._db.execute("DELETE FROM responses WHERE id = ?", (response_id,))
            num_responses -= 1
            total_bytes -= num_bytes


def open_database(folder: Path | None) -> sqlite3.Connection:
    path = ":memory:"
    if folder is not None:
        file = folder / FILE_NAME
        # it holds what users have written
        file.touch(mode=0o600)
        path = str(file)
    database = sqlite3.connect(path, check_same_thread=False)
    database.executescript(TABLES)
    return database
