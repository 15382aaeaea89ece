"""Random histories of one runner: prompts are repeated, extended, edited, cut and given other
images; requests share the batch and are aborted at any point.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.media import LoadedImage
from mlx_server.engine.runner import Runner
from mlx_server.engine.sequence import (
    ChatMessage,
    ChatPrompt,
    RawPrompt,
    Sequence,
    Started,
    TextPart,
)
from tests.engine_runs import (
    Answer,
    assistant,
    decode,
    make_sequence,
    picture,
    prefill,
    system,
    user,
)

WORDS = ("sun", "moon", "a red box", "é漢😀", "one two three four five six", ".", "why so?", "\n")
PICTURES = [picture(color) for color in ("red", "blue", "green")] + [picture("red", 96)]
MAX_ROWS = 3


@dataclass(frozen=True)
class Ask:
    """A conversation or a raw prompt, with the images of its turns in order."""

    messages: tuple[ChatMessage, ...]
    images: tuple[LoadedImage, ...] = ()
    raw: str | None = None
    max_tokens: int = 6

    def sequence(self) -> Sequence:
        prompt = RawPrompt(self.raw) if self.raw is not None else ChatPrompt(self.messages)
        return make_sequence(prompt, self.images, max_tokens=self.max_tokens)


@dataclass
class Asks:
    """Makes up the next request from those that were answered: `done` is the caller's to fill."""

    random: random.Random
    has_vision: bool
    done: list[tuple[Ask, Answer]] = field(default_factory=list)

    def next(self) -> Ask:
        if not self.done or self.random.random() < 0.15:
            return self.first()
        ask, answer = self.random.choice(self.done)
        change = self.random.choice(
            (self.repeat, self.extend, self.extend, self.edit, self.shorten, self.look, self.spell)
        )
        return change(ask, answer)

    def first(self) -> Ask:
        lead = (system("You are a box. " + self.words(2)),) if self.random.random() < 0.6 else ()
        return self.turn(Ask(lead))

    def turn(self, ask: Ask) -> Ask:
        """The conversation with one more question, perhaps about pictures."""
        num_images = self.random.choice((0, 0, 1, 2)) if self.has_vision else 0
        images = self.random.choices(PICTURES, k=num_images)
        message = user(self.words(self.random.randint(1, 4)), num_images)
        return Ask(
            (*ask.messages, message), (*ask.images, *images), max_tokens=self.random.randint(1, 9)
        )

    def words(self, num: int) -> str:
        return " ".join(self.random.choices(WORDS, k=num))

    def repeat(self, ask: Ask, answer: Answer) -> Ask:
        return replace(ask, max_tokens=self.random.randint(1, 9))

    def extend(self, ask: Ask, answer: Answer) -> Ask:
        if ask.raw is not None:
            return replace(ask, raw=ask.raw + answer.text + self.words(1))
        reply = answer.text.strip() or "yes"
        return self.turn(replace(ask, messages=(*ask.messages, assistant(reply))))

    def edit(self, ask: Ask, answer: Answer) -> Ask:
        if ask.raw is not None:
            return replace(ask, raw=ask.raw[: len(ask.raw) // 2] + self.words(2))
        kept, last = ask.messages[:-1], ask.messages[-1]
        images = last.content[:-1]
        return replace(
            ask, messages=(*kept, replace(last, content=(*images, *user(self.words(2)).content)))
        )

    def shorten(self, ask: Ask, answer: Answer) -> Ask:
        if ask.raw is not None:
            return replace(ask, raw=ask.raw[: self.random.randint(1, len(ask.raw))])
        turns = [i for i, m in enumerate(ask.messages) if m.role == "user"]
        end = self.random.choice(turns) + 1
        messages = ask.messages[:end]
        num_images = sum(len(m.content) - 1 for m in messages if m.role == "user")
        return replace(ask, messages=messages, images=ask.images[:num_images])

    def look(self, ask: Ask, answer: Answer) -> Ask:
        """The same words about other pictures, or about the same ones in another order."""
        return replace(ask, images=tuple(self.random.choices(PICTURES, k=len(ask.images))))

    def spell(self, ask: Ask, answer: Answer) -> Ask:
        """The texts of the turns, without their frame, as a raw prompt."""
        text = "".join(
            part.text for m in ask.messages for part in m.content if isinstance(part, TextPart)
        )
        return replace(ask, messages=(), images=(), raw=(ask.raw or text)[:80] or "a")


@dataclass
class History:
    """A runner, the requests it works on, and those it has answered."""

    random: random.Random
    loaded: LoadedModel
    runner: Runner
    prefilling: tuple[Ask, Sequence] | None = None
    running: dict[int, tuple[Ask, Sequence, Answer]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.asks = Asks(self.random, self.loaded.has_vision)
        self.done = self.asks.done

    def step(self) -> None:
        """Do one thing that a server might do next."""
        choice = self.random.random()
        if self.prefilling is None and len(self.running) < MAX_ROWS and choice < 0.5:
            ask = self.asks.next()
            self.prefilling = (ask, ask.sequence())
        if self.prefilling is not None and choice < 0.7:
            self.prefill()
        elif choice < 0.73:
            self.abort()
        elif self.running:
            self.decode()

    def prefill(self) -> None:
        assert self.prefilling is not None
        ask, sequence = self.prefilling
        event = prefill(self.runner, sequence)
        if isinstance(event, Started):
            self.prefilling = None
            self.running[sequence.uid] = (ask, sequence, Answer(event))

    def decode(self) -> None:
        for sequence, delta in decode(self.runner):
            if sequence.uid not in self.running:
                continue
            ask, _, answer = self.running[sequence.uid]
            answer.deltas.append(delta)
            if delta.finish_reason is not None:
                del self.running[sequence.uid]
                self.done.append((ask, answer))

    def abort(self) -> None:
        if self.prefilling is not None and self.random.random() < 0.5:
            self.runner.drop(self.prefilling[1])
            self.prefilling = None
        elif self.running:
            uid = self.random.choice(list(self.running))
            self.runner.drop(self.running.pop(uid)[1])

    def finish(self) -> None:
        while self.prefilling is not None:
            self.prefill()
        while self.running:
            self.decode()
