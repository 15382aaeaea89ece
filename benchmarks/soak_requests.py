"""The requests of the soak, drawn from a seed, and what a lone server answers to each."""

from __future__ import annotations

import base64
import io
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.client import Answer
from benchmarks.texts import Writer

NEAR_TIE = 1e-3
"""Difference of the two likeliest tokens' logprobs that rounding may turn over, in single
precision: rows of a batch are computed in other orders than a lone one.
"""
WHOLE = ("stop", "length")
"""How an answer ends that nobody has cut off."""
Verdict = Literal["same", "tie", "wrong", "broken off"]
COLOURS = ("red", "green", "blue", "white", "black", "orange")


@dataclass(frozen=True, slots=True)
class Request:
    model: Path
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Expected:
    """`ties` are the stretches of `text` whose token had a rival as likely as itself."""

    text: str
    finish_reason: str | None
    num_tokens: int
    ties: tuple[tuple[int, int], ...]

    def judge(self, answer: Answer) -> Verdict:
        """`tie` if it first differs where either of two tokens may come."""
        if answer.error is not None or answer.finish_reason not in WHOLE:
            return "broken off"
        # the request allowed at least as many
        if answer.finish_reason == "length" and answer.num_tokens < self.num_tokens:
            return "broken off"
        if (answer.text, answer.finish_reason) == (self.text, self.finish_reason):
            return "same"
        place = first_difference(answer.text, self.text)
        return "tie" if any(start <= place <= end for start, end in self.ties) else "wrong"


def first_difference(one: str, other: str) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def expected_of(choice: Mapping[str, Any]) -> Expected:
    """Of an answer that was asked for with the logprobs of two tokens at each place."""
    entries = choice["logprobs"]["content"]
    ties, start = [], 0
    for entry in entries:
        end = start + len(entry["token"])
        top = sorted((t["logprob"] for t in entry["top_logprobs"]), reverse=True)
        if len(top) > 1 and top[0] - top[1] <= NEAR_TIE:
            ties.append((start, end))
        start = end
    text = choice["message"]["content"] or ""
    return Expected(text, choice["finish_reason"], len(entries), tuple(ties))


def draw(models: Mapping[Path, bool], count: int, seed: int) -> list[Request]:
    """`models` says of each whether it sees images."""
    chance = random.Random(seed)
    folders = list(models)
    return [
        draw_one(chance, number, folder := folders[number % len(folders)], models[folder])
        for number in range(count)
    ]


def draw_one(chance: random.Random, number: int, model: Path, has_vision: bool) -> Request:
    writer = Writer(model)
    agent = writer.text(chance.choice((30, 150, 400)), f"agent {chance.randrange(3)}")
    messages: list[dict[str, Any]] = [{"role": "system", "content": agent}]
    for turn in range(chance.choice((0, 0, 1, 2))):
        words = writer.text(20, f"turn {number % 5} {turn}")
        messages.append({"role": "user", "content": words})
        messages.append({"role": "assistant", "content": writer.text(15, f"said {number} {turn}")})
    question: Any = writer.text(chance.choice((5, 40)), f"question {number}")
    if has_vision and chance.random() < 0.5:
        url = picture(chance.choice(COLOURS))
        question = [
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "text", "text": question},
        ]
    messages.append({"role": "user", "content": question})
    max_tokens = chance.choice((1, 8, 24, 64))
    return Request(model, {"messages": messages, "max_tokens": max_tokens, "temperature": 0.0})


def picture(colour: str) -> str:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (56, 56), colour).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
