"""mlx_vlm's model in a greedy loop: no server, no engine. Prints the median of the runs.

    .venv/bin/python -m benchmarks.bare MODEL decode NUM_ROWS NUM_PROMPT_TOKENS NUM_TOKENS RUNS
    .venv/bin/python -m benchmarks.bare MODEL turn NUM_OLD_TOKENS NUM_NEW_TOKENS RUNS

`decode` gives tokens per second: of one row for its decoding alone, of several rows with their
prefills, one after the other, as the servers are measured. `turn` gives the seconds from new tokens
to the first token of the answer, with the KV state of the old ones at hand.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.texts import Writer
from mlx_server.engine.blas import preload_blas

NO_LIMIT = 1 << 30


def bare_row(model: Any, prompt: list[int], num_tokens: int) -> float:
    """Tokens per second after the first."""
    import mlx.core as mx
    from mlx_vlm.models.cache import make_prompt_cache

    caches = make_prompt_cache(model)
    token = mx.argmax(model(mx.array([prompt]), cache=caches).logits[:, -1], axis=-1)
    mx.eval(token)
    began = time.perf_counter()
    for _ in range(num_tokens - 1):
        following = mx.argmax(model(token[:, None], cache=caches).logits[:, -1], axis=-1)
        mx.async_eval(following)
        token.tolist()
        token = following
    mx.eval(token)
    return (num_tokens - 1) / (time.perf_counter() - began)


def bare_turn(model: Any, old: list[int], new: list[int]) -> float:
    """Seconds from the new tokens to the first token of the answer."""
    import mlx.core as mx
    from mlx_vlm.models.cache import make_prompt_cache

    caches = make_prompt_cache(model)
    model(mx.array([old]), cache=caches)
    mx.eval([cache.state for cache in caches])
    began = time.perf_counter()
    mx.argmax(model(mx.array([new]), cache=caches).logits[:, -1], axis=-1).tolist()
    return time.perf_counter() - began


def bare_batch(whole: Any, prompts: list[list[int]], num_tokens: int) -> float:
    """Tokens per second of all rows, from the first prefill on."""
    import mlx.core as mx
    from mlx_vlm.generate.ar import GenerationBatch, PromptProcessingBatch
    from mlx_vlm.models.cache import make_prompt_cache

    model = whole.language_model
    began = time.perf_counter()
    batch: Any = None
    for uid, prompt in enumerate(prompts):
        ids = mx.array([prompt])
        features = whole.get_input_embeddings(ids, None, mask=mx.ones_like(ids)).to_dict()
        prefill = PromptProcessingBatch(
            model=model,
            uids=[uid],
            input_ids=[prompt],
            max_tokens=[NO_LIMIT],
            inputs_embeds=features.pop("inputs_embeds"),
            prompt_kwargs={},
            warm_cache=make_prompt_cache(model),
        )
        row: GenerationBatch = prefill.generate(likeliest, never, compute_logprobs=False)
        if batch is None:
            batch = row
        else:
            batch.extend(row)
    for _ in range(num_tokens):
        batch.next()
    return len(prompts) * num_tokens / (time.perf_counter() - began)


def likeliest(logprobs: Any) -> Any:
    import mlx.core as mx

    return mx.argmax(logprobs, axis=-1)


def never(token_id: int) -> bool:
    return False


def median_rate(model: Any, writer: Writer, arguments: list[int]) -> float:
    num_rows, num_prompt_tokens, num_tokens, runs = arguments
    prompts = [writer.token_ids(num_prompt_tokens, f"row {i}") for i in range(num_rows)]
    run: Callable[[int], float] = (
        (lambda count: bare_row(model.language_model, prompts[0], count))
        if num_rows == 1
        else (lambda count: bare_batch(model, prompts, count))
    )
    run(4)
    return statistics.median(run(num_tokens) for _ in range(runs))


def median_turn(model: Any, writer: Writer, arguments: list[int]) -> float:
    num_old, num_new, runs = arguments
    old, new = writer.token_ids(num_old, "old"), writer.token_ids(num_new, "new")
    return statistics.median(bare_turn(model.language_model, old, new) for _ in range(runs))


def main() -> None:
    folder, what = Path(sys.argv[1]), sys.argv[2]
    preload_blas()
    import mlx_vlm

    from mlx_server.engine.device import prepare_device

    prepare_device()
    model = mlx_vlm.load(str(folder))[0]
    measure = {"decode": median_rate, "turn": median_turn}[what]
    print(measure(model, Writer(folder), [int(argument) for argument in sys.argv[3:]]))


if __name__ == "__main__":
    main()
