"""What is said to SGLang's server and what its answers mean: token ids in and out, streamed step by step.

The figures in this project's words:

- `spec_correct_drafts_histogram[j]` is the number of verify steps that accepted j drafted tokens, the last step whole,
  whether or not all of it was kept. It has no order. Answers are streamed step by step, so the order is that of the
  chunks; where a slow reader got several steps as one chunk, they are told apart by what the histogram has.
- `spec_accept_length` is not used. It is `completion_tokens / spec_verify_ct`: the token that the prompt itself gave is
  counted with no step of its own, so it is too high by 1 / steps, and too low after a step that was cut.
- Requests of DDTREE can ask for their rounds' own figures (`sglang_ddtree.rounds`), which have an order. They are held
  against the histogram.
- `stop_token_ids` count for nothing under `ignore_eos`, which is therefore set only for requests without end ids.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from methods.base import Generation, Inspect, Inspected, Request, Stages, TreeDump, Unchecked
from methods.engines.http import Http, ServerError
from methods.engines.served import Told
from methods.engines.sglang_ddtree.settings import CHAIN, CHOICES, KEY, STAGES, TREE
from methods.reference.shadow import shadowed
from methods.streaming import Chunk


@dataclass(frozen=True)
class Traced(Told):
    """What DDTREE tells beside: each round's figures, with what was asked of them."""

    asked: tuple[str, ...] = ()
    figures: tuple[dict[str, Any], ...] = ()


def sampling(request: Request, asked: Sequence[str] | None = None) -> dict[str, Any]:
    """A request in SGLang's words. Only the request's own end ids end it, and they are part of the output. `asked`:
    what DDTREE is to tell of its rounds."""
    stops = {"stop_token_ids": list(request.stop_ids)} if request.stop_ids else {"ignore_eos": True}
    told = {} if asked is None else {"custom_params": {KEY: list(asked)}}
    return {
        "input_ids": list(request.prompt_ids),
        "sampling_params": {"max_new_tokens": request.max_new_tokens, "temperature": 0.0, **stops, **told},
    }


def asking(profile: bool, inspect: Inspect | None) -> tuple[str, ...] | None:
    """What a request has to ask for; None: nothing."""
    looked = inspect or Inspect()
    judged = looked.oracle_rate > 0
    wanted = {STAGES: profile, CHAIN: looked.shadow_linear, TREE: looked.dump_rounds or judged, CHOICES: judged}
    return tuple(word for word, yes in wanted.items() if yes) or None


def forced(texts: Sequence[Sequence[int]], start: int, top: int) -> dict[str, Any]:
    """Texts to be read in one pass each; of the tokens after the one at `start` the log-probs are told, their own and
    the `top` best in their places."""
    return {
        "input_ids": [list(text) for text in texts],
        "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
        "return_logprob": True,
        "logprob_start_len": start,
        "top_logprobs_num": top,
    }


def looked_into(done: Generation, told: Traced) -> Generation:
    """An answer with what its rounds' figures say, as the built-in engine would say it."""
    asked, figures = told.asked, told.figures
    if len(figures) != len(done.rounds):
        raise ServerError(f"the server tells of {len(figures)} rounds, but {len(done.rounds)} make the answer")
    stages = zip([0.0] * 4, *(one[STAGES] for one in figures if STAGES in asked), strict=True)
    rounds = tuple(
        Inspected(
            one["accepted"],
            tree=_tree(one) if TREE in asked else None,
            unchecked=_nodes(one) if CHOICES in asked else None,
        )
        for one in figures
    )
    if CHAIN in asked:
        rounds = shadowed(rounds, [one[CHAIN] for one in figures], done.output_ids)
    return replace(
        done,
        tree_checksum=figures[-1]["checksum"] if figures else 0,
        stages=Stages(*map(sum, stages)) if STAGES in asked else None,
        inspected=rounds if {CHAIN, TREE} & set(asked) else None,
    )


def _tree(figures: dict[str, Any]) -> TreeDump:
    told: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in figures[TREE].items()
    }
    return TreeDump(figures["root_at"], **told)


def _nodes(figures: dict[str, Any]) -> Unchecked:
    tree = figures[TREE]
    return Unchecked(figures["root_at"], tuple(tree["tokens"]), tuple(tree["parents"]), tuple(figures[CHOICES]))


def log_probs(own: Sequence[Any], top: Sequence[Any]) -> list[dict[int, float]]:
    """SGLang's triples (log-prob, id, text), of the tokens and of the best in their places, as one mapping a token."""
    return [
        {int(token): float(value) for value, token, _ in (*best, mine)} for mine, best in zip(own, top, strict=True)
    ]


@dataclass(frozen=True)
class SglangClient:
    """One connection a request; a chunk is what one step emitted, and the last one has the request's figures."""

    http: Http
    asked: tuple[str, ...] | None = None

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        sizes: list[int] = []
        figures: list[dict[str, Any]] = []
        async with aclosing(self.http.events("/generate", {**sampling(request, self.asked), "stream": True})) as events:
            async for time_s, event in events:
                one = chunk(event, time_s, sizes)
                if self.asked is not None:
                    figures += filter(None, event["meta_info"].get(KEY) or ())
                    one = traced(one, self.asked, figures)
                yield one


def chunk(event: Any, time_s: float, sizes: list[int]) -> Chunk:
    """What one event says: tokens, and with the last of them the figures of the request.

    `sizes` is given the number of tokens of each chunk. A request that SGLang took back and began anew has been
    measured as something else than decoding.
    """
    try:
        if "error" in event:
            raise ServerError(f"the server failed the request: {event['error']['message']}")
        tokens, told = tuple(int(token) for token in event["output_ids"]), event["meta_info"]
        sizes.append(len(tokens))
        ending = told["finish_reason"]
        if ending is None:
            return Chunk(tokens, time_s)
        if ending["type"] not in ("stop", "length"):
            raise ServerError(f"the server ended the request with {ending['type']}: {ending.get('message')}")
        if told["num_retractions"]:
            raise ServerError("the server took the request back and began it anew: it has too few slots")
        n_output = int(told["completion_tokens"])
        decode_s = (n_output - 1) / float(told["decode_throughput"]) if n_output > 1 else 0.0
        accepted = steps(sizes, told.get("spec_correct_drafts_histogram") or ())
        return Told(tokens, time_s, ending["type"], decode_s, accepted, int(told["cached_tokens"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ServerError(f"the server sent an event of another shape: {str(event)[:200]}") from error


def traced(one: Chunk, asked: tuple[str, ...], figures: Sequence[dict[str, Any]]) -> Chunk:
    """A chunk; the last one with what each round's figures say in place of what the histogram leaves open."""
    if not isinstance(one, Told):
        return one
    accepted = tuple(told["accepted"] for told in figures)
    if sorted(accepted) != sorted(one.accepted):
        raise ServerError(f"the server counts {len(one.accepted)} verify steps, but tells of others")
    return Traced(**{**vars(one), "accepted": accepted}, asked=asked, figures=tuple(figures))


def steps(sizes: Sequence[int], histogram: Sequence[int]) -> tuple[int, ...]:
    """How many drafted tokens each verify step accepted, in order.

    Args:
        sizes: the tokens of each chunk; the very first token is the prompt's own.
        histogram: how many steps accepted 0, 1, … tokens, the last step whole.

    A chunk is one step, or several that a slow reader got at once: then the largest that fit. Where even that does not
    come out, only the number of steps of each kind is known, and the fewest accepted stand first.

    Raises:
        ServerError: the steps are fewer than the chunks, have fewer tokens than the answer, or more than its last step
            can have lost.
    """
    if not histogram:
        return ()
    left = list(histogram)
    whole = [size for size in (sizes[0] - 1, *sizes[1:]) if size]
    emitted = sum(whole)
    cut = sum((accepted + 1) * count for accepted, count in enumerate(left)) - emitted
    if not 0 <= cut < len(left) or len(whole) > sum(left):
        raise ServerError(
            f"the server counts {sum(left)} verify steps of {emitted + cut} tokens, but {emitted} came in {len(whole)}"
        )
    if whole:
        whole[-1] += cut
    found: list[int] = []
    for size in whole:
        inside: list[int] = []
        while size and (fitting := [accepted for accepted in range(min(size, len(left))) if left[accepted]]):
            inside.append(fitting[-1])
            left[fitting[-1]] -= 1
            size -= fitting[-1] + 1
        if size:
            return tuple(accepted for accepted, count in enumerate(histogram) for _ in range(count))
        found += reversed(inside)
    return tuple(found)
