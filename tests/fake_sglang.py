"""SGLang's server without SGLang: its command line, its answers as streams of token ids, its figures, its faults.

A script; `engine.python` is a wrapper that runs it. What it says has the shape of the recorded answers of a real server
beside it; the figures of drafting, which no recording has, are as SGLang's source gives them. `FAKE_SGLANG` is a fault,
as `ARM:FAULT`, of the server of that arm: `exit` (before it is ready), `die`, `cut`, `500`, `shape`, `abort`, `cached`,
`retracted`, `few` and `many` (steps of fewer, or more, tokens than the answer), `lie` (another text), `error`,
`backend` (another attention backend than asked for), `block` (another block size), `crowd` (more requests at once),
`unloaded` (a process without the plugin), `silent` (no figures of rounds), `choice` (of the deepest node, a wrong one).
DDTREE's figures are those of a chain, the true tokens up to what the step accepts. `FAKE_MERGED` sends every two steps
as one chunk.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from http.server import ThreadingHTTPServer
from pathlib import Path

sys.path.append(str(Path(__file__).parent))  # servers start without their own folder in it

from fake_serving import Answers, fault_of, following, option, refuse_to_start, truth

STEPS = (0, 3, 1, 15, 2)  # drafted tokens that the verify steps accept, over and over


def rounds(words: list[str], root: int, root_at: int, accepted: int) -> dict:
    """What a step tells: a chain of 15 whose first `accepted` tokens are the model's."""
    chain = [token + (depth >= accepted) for depth, token in enumerate(truth([root], 15))]
    more = {
        "stages": [0.25, 0.5, 1.0, 2.0],
        "chain": chain,
        "tree": {
            "tokens": [root, *chain],
            "parents": [0, *range(15)],
            "depths": [*range(16)],
            "log_probs": [0.0, *[-0.5] * 15],
            "path": [*range(accepted + 1)],
            "bonus": truth([root], accepted + 1)[-1],
        },
        "choices": [*map(following, [root, *chain[:-1]]), following(chain[-1]) + (FAULT == "choice")],
    }
    counts = {"root_at": root_at, "drafted": 15, "depths": [1] * 15, "accepted": accepted, "emitted": accepted + 1}
    return {**counts, "checksum": root_at, **{word: more[word] for word in words}}


DRAFTING = option("--speculative-algorithm")
ARM = {None: "autoregressive", "DFLASH": "dflash", "DDTREE": "ddtree"}[DRAFTING]
FAULT = fault_of("FAKE_SGLANG", ARM)


def info() -> dict:
    """`/server_info`, as far as anything reads it."""
    return {
        "version": "0.0.fake",
        "model_path": option("--model-path"),
        "served_model_name": option("--served-model-name"),
        "context_length": int(option("--context-length")),
        "attention_backend": "fa3" if FAULT == "backend" else option("--attention-backend"),
        "sampling_backend": option("--sampling-backend"),
        "disable_overlap_schedule": "--disable-overlap-schedule" in sys.argv,
        "disable_radix_cache": "--disable-radix-cache" in sys.argv,
        "skip_tokenizer_init": "--skip-tokenizer-init" in sys.argv,
        "incremental_streaming_output": "--incremental-streaming-output" in sys.argv,
        "enable_metrics": "--enable-metrics" in sys.argv,
        "page_size": int(option("--page-size")),
        "max_running_requests": 48 if FAULT == "crowd" else int(option("--max-running-requests")),
        "max_total_num_tokens": int(option("--max-total-tokens")),
        "chunked_prefill_size": 8192,
        "dtype": option("--dtype"),
        "tp_size": int(option("--tp-size")),
        "stream_interval": 1,
        "cuda_graph_config": {"decode": {"backend": "full", "bs": [1]}, "prefill": {"backend": "disabled"}},
        "speculative_algorithm": DRAFTING,
        "speculative_num_draft_tokens": DRAFTING and int(option("--speculative-num-draft-tokens")) - (FAULT == "block"),
    }


class Handler(Answers):
    def do_GET(self):
        self.whole(
            200, {"/v1/models": {"data": [{"id": option("--served-model-name")}]}, "/server_info": info()}[self.path]
        )

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/generate" and asked["sampling_params"]["temperature"] == 0.0
        if "return_logprob" in asked:
            assert not DRAFTING
            return self.whole(200, self.all_log_probs(asked))
        if FAULT == "500":
            return self.whole(500, {"error": {"message": "out of memory"}})
        self.streamed(asked)

    def all_log_probs(self, asked):
        if isinstance(asked["input_ids"][0], int):
            return self.log_probs(asked)
        beside = asked.get("token_ids_logprob", [[]] * len(asked["input_ids"]))
        each = [
            {"input_ids": ids, "token_ids_logprob": own} for ids, own in zip(asked["input_ids"], beside, strict=True)
        ]
        return [self.log_probs({**asked, **one}) for one in each]

    @staticmethod
    def log_probs(asked):
        beside = asked.get("token_ids_logprob", [])
        ids, start, top = asked["input_ids"], asked.get("logprob_start_len", -1), asked["top_logprobs_num"]

        def row(before, token):
            return [0.0 if token == following(before) else -9.0, token, None]

        def best(before):
            return [[-float(rank), (following(before) + rank) % 997, None] for rank in range(top)]

        output = truth(ids, asked["sampling_params"]["max_new_tokens"])
        inputs = list(zip(ids[start:], ids[start + 1 :], strict=False)) if start >= 0 else []
        outputs = list(zip([ids[-1], *output], output, strict=False))
        told = {
            "input_token_logprobs": [[None, ids[start], None], *(row(*pair) for pair in inputs)],
            "input_top_logprobs": [None, *(best(before) for before, _ in inputs)],
            "input_token_ids_logprobs": [None, *([row(before, token) for token in beside] for before, _ in inputs)],
            "output_token_logprobs": [row(*pair) for pair in outputs],
            "output_top_logprobs": [best(before) for before, _ in outputs],
        }
        return {"output_ids": output, "meta_info": told}

    def stream(self, asked):
        how = asked["sampling_params"]
        stops = set() if how.get("ignore_eos") else set(how["stop_token_ids"])
        tokens = truth(asked["input_ids"], how["max_new_tokens"])
        met = [at for at, token in enumerate(tokens) if token in stops]
        tokens = tokens[: met[0] + 1] if met else tokens
        if FAULT == "lie":
            tokens[-1] += 1
        pieces, accepted = [tokens[:1]], []
        while (done := sum(map(len, pieces))) < len(tokens):
            accepted.append(STEPS[len(accepted) % len(STEPS)] if DRAFTING else 0)
            pieces.append(tokens[done : done + accepted[-1] + 1])
        words = (how.get("custom_params") or {}).get("draft_tree")
        beside: list[dict | None] = [None]  # an entry a token, as SGLang sends them
        for steps, piece in zip(accepted, pieces[1:], strict=True):
            before, root_at = tokens[len(beside) - 1], len(asked["input_ids"]) + len(beside) - 1
            beside += [rounds(words or (), before, root_at, steps), *[None] * (len(piece) - 1)]
        if os.environ.get("FAKE_MERGED"):
            pieces = [
                [*first, *second] for first, second in itertools.zip_longest(pieces[::2], pieces[1::2], fillvalue=())
            ]
        sent = 0
        for index, piece in enumerate(pieces):
            sent += len(piece)
            end = index == len(pieces) - 1
            ending = {"type": "stop", "matched": piece[-1]} if met else {"type": "length", "length": len(tokens)}
            told = self.told(asked, sent, ending if end else None)
            if end:
                told |= self.figures(len(tokens), accepted)
            if DRAFTING == "DDTREE" and words is not None and FAULT != "silent":
                told["draft_tree"] = beside[sent - len(piece) : sent]
            self.event(json.dumps({"output_ids": piece, "meta_info": told}).encode())
            if index == 1:
                self.fault()
        self.ended()

    @staticmethod
    def told(asked, sent, ending):
        if ending and FAULT == "abort":
            ending = {"type": "abort", "message": "the batch was dropped"}
        return {
            "id": "0",
            "finish_reason": ending,
            "prompt_tokens": len(asked["input_ids"]),
            "num_retractions": int(FAULT == "retracted"),
            "completion_tokens": sent,
            "cached_tokens": 16 if FAULT == "cached" else 0,
        }

    @staticmethod
    def figures(n_output, accepted):
        found = {"e2e_latency": 1.0}
        if n_output > 1:
            found["decode_throughput"] = 1e6
        if DRAFTING and accepted:
            accepted = accepted[1:] if FAULT == "few" else accepted + [5] * (9 if FAULT == "many" else 0)
            found["spec_correct_drafts_histogram"] = [accepted.count(j) for j in range(max(accepted, default=0) + 1)]
            found["spec_verify_ct"] = len(accepted)
            found["spec_accept_length"] = n_output / max(1, len(accepted))
        return found

    def fault(self):
        self.broken(FAULT)
        if FAULT == "shape":
            self.event(b'{"output_ids": 7}')
        if FAULT == "error":
            self.event(b'{"error": {"message": "the input is too long", "code": 400}}')


def main():
    assert sys.argv[1:3] == ["-m", "sglang.launch_server"]
    print(f"fake SGLang of {ARM}", flush=True)
    if DRAFTING == "DDTREE":
        told = json.loads(os.environ["DRAFT_TREE_SGLANG"])
        assert 1 + told["budget"] == int(option("--speculative-num-draft-tokens")) and told["block_size"] == 16
        for pid in (1, 2)[: 1 if FAULT == "unloaded" else 2]:
            print(f"draft-tree plugin: DDTREE registered in process {pid}", flush=True)
    refuse_to_start(FAULT)
    subprocess.Popen(["sleep", "600"], start_new_session=True)  # a worker that leaves the group
    ThreadingHTTPServer(("127.0.0.1", int(option("--port"))), Handler).serve_forever()


if __name__ == "__main__":
    main()
