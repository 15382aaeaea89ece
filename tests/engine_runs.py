"""Requests for the runner of one model, and what it answers, step by step."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from PIL import Image

from mlx_server.engine.kv_cost import KVCost
from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.media import LoadedImage
from mlx_server.engine.memory import KVMemory, Scratch
from mlx_server.engine.prefix_cache import PrefixCache
from mlx_server.engine.runner import Answer as Event
from mlx_server.engine.runner import Runner
from mlx_server.engine.sequence import (
    ChatMessage,
    ChatPrompt,
    Delta,
    FinishReason,
    GenerationRequest,
    ImagePart,
    Progress,
    RawPrompt,
    SamplingParams,
    Sequence,
    Started,
    TextPart,
    TokenLogprob,
)
from mlx_server.model_dimensions import ModelDimensions

GREEDY = SamplingParams(temperature=0.0)
PREFIX_CACHE_BYTES = 64 << 20
TIE = 1e-3
_uids = itertools.count()
_firsts: WeakKeyDictionary[Runner, list[Event]] = WeakKeyDictionary()


def picture(color: str, size: int = 64) -> LoadedImage:
    image = Image.new("RGB", (size, size), color)
    # a second color, so that scaling and normalising leave something to see
    image.paste((255, 255, 255), (0, 0, size // 2, size // 3))
    return LoadedImage(image, hashlib.sha256(f"{size}".encode() + image.tobytes()).digest())


def user(text: str, num_images: int = 0) -> ChatMessage:
    """A turn whose images stand before its text."""
    images = [ImagePart("data:,", "messages")] * num_images
    return ChatMessage("user", (*images, TextPart(text)))


def assistant(text: str) -> ChatMessage:
    return ChatMessage("assistant", (TextPart(text),))


def system(text: str) -> ChatMessage:
    return ChatMessage("system", (TextPart(text),))


def make_sequence(
    prompt: ChatPrompt | RawPrompt | str,
    images: Seq[LoadedImage] = (),
    *,
    sampling: SamplingParams = GREEDY,
    max_tokens: int | None = 8,
    top_logprobs: int | None = 2,
    model: str = "m",
    **fields: Any,
) -> Sequence:
    """A greedy sequence that tells the two likeliest tokens at every place; text is one turn."""
    if isinstance(prompt, str):
        prompt = ChatPrompt((user(prompt),))
    uid = next(_uids)
    request = GenerationRequest(
        f"r{uid}",
        model,
        prompt,
        sampling,
        max_tokens=max_tokens,
        top_logprobs=top_logprobs,
        **fields,
    )
    return Sequence(
        uid, request, 0, model, sampling.seed or 0, deadline=math.inf, images=tuple(images)
    )


@dataclass
class Answer:
    """All that came of one sequence."""

    started: Started | None = None
    deltas: list[Delta] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def logprobs(self) -> list[TokenLogprob]:
        return [entry for delta in self.deltas for entry in delta.logprobs]

    @property
    def tokens(self) -> list[bytes]:
        return [entry.token_bytes for entry in self.logprobs]

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.deltas[-1].finish_reason if self.deltas else None

    @property
    def num_cached_tokens(self) -> int:
        assert self.started is not None
        return self.started.num_cached_tokens


def make_runner(
    loaded: LoadedModel, *, step_size: int = 512, cache_bytes: int = PREFIX_CACHE_BYTES
) -> Runner:
    return Runner(
        loaded,
        prefill_step_size=step_size,
        prefix_cache=PrefixCache(cache_bytes),
        memory=boundless(loaded),
    )


def boundless(loaded: LoadedModel) -> KVMemory:
    """A ledger of more memory than any test takes."""
    return KVMemory(
        limit_bytes=1 << 50,
        weight_bytes=0,
        cost=KVCost(()),
        scratch=Scratch(ModelDimensions.of_config(loaded.model.config), 1, False),
        context_length=loaded.context_length,
    )


def prefill(runner: Runner, sequence: Sequence) -> Progress | Started:
    """One chunk; once the prompt is through, the sequence is among those that decode."""
    if sequence.uid not in runner.memory._rows:
        if sequence.prompt is None:
            runner.prepare(sequence)
        assert runner.reserve(sequence)
    event = runner.prefill(sequence).event
    if isinstance(event, Started):
        _firsts.setdefault(runner, []).append(runner.join(sequence))
        runner.settle()
    return event


def start(runner: Runner, sequence: Sequence) -> Started:
    """Prefill to the end."""
    while not isinstance(event := prefill(runner, sequence), Started):
        pass
    return event


def decode(runner: Runner) -> list[tuple[Sequence, Delta]]:
    """The first tokens of those that have joined, else one for every row; the ended leave."""
    # a runner that reads ahead has nothing to tell of the first step
    events = _firsts.pop(runner, None) or runner.decode() or runner.decode()
    runner.settle()
    return [(sequence, event) for sequence, event in events if isinstance(event, Delta)]


def run(runner: Runner, sequence: Sequence) -> Answer:
    """Prefill and decode to the end; nothing else may be running."""
    answer = Answer(start(runner, sequence))
    while answer.finish_reason is None:
        answer.deltas += [delta for _, delta in decode(runner)]
    return answer


def run_together(runner: Runner, sequences: list[Sequence]) -> dict[Sequence, Answer]:
    """Prefill one after the other, then decode all to their ends."""
    answers = {s: Answer(start(runner, s)) for s in sequences}
    while batch := decode(runner):
        for sequence, delta in batch:
            answers[sequence].deltas.append(delta)
    return answers


def run_alone(loaded: LoadedModel, sequence: Sequence) -> Answer:
    """What a fresh runner answers, which takes the prompt in one piece and keeps nothing."""
    return run(make_runner(loaded, step_size=4096, cache_bytes=0), sequence)


def first_difference(answer: Answer, fresh: Answer) -> float | None:
    """How far apart the two best logits are where the answers part; None if they never do.

    After that place nothing can be compared; up to there the numbers must agree as well.
    """
    for ours, theirs in itertools.zip_longest(answer.logprobs, fresh.logprobs):
        if ours is None or theirs is None or ours.token_bytes != theirs.token_bytes:
            known = theirs or ours
            return known.top[0].logprob - known.top[1].logprob
        assert abs(ours.logprob - theirs.logprob) < TIE
    return None
