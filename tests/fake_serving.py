"""What the fake servers of vLLM and SGLang share: a model of one line, the command line, HTTP, faults on the wire."""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import suppress
from http.server import BaseHTTPRequestHandler


def following(token: int) -> int:
    """The token after another: the whole model."""
    return (token * 31 + 7) % 997


def truth(prompt: list[int], n: int) -> list[int]:
    found = [following(prompt[-1])]
    while len(found) < n:
        found.append(following(found[-1]))
    return found


def option(name: str) -> str | None:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else None


def fault_of(variable: str, arm: str) -> str:
    """The fault of this arm's server, from `ARM:FAULT`."""
    told = os.environ.get(variable, ":")
    return told.removeprefix(f"{arm}:") if arm in told else ""


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def whole(self, status, content):
        body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def streamed(self, asked):
        """What the server's own `stream` says, until the other side goes."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with suppress(BrokenPipeError):
            self.stream(asked)

    def event(self, data: bytes):
        piece = b"data: " + data + b"\n\n"
        self.wfile.write(b"%x\r\n" % len(piece) + piece + b"\r\n")
        self.wfile.flush()

    def ended(self):
        self.event(b"[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def broken(self, fault):
        if fault == "die":
            print("RuntimeError: CUDA error: an illegal memory access", flush=True)
            os._exit(3)
        if fault == "cut":
            self.connection.shutdown(socket.SHUT_RDWR)


def refuse_to_start(fault):
    if fault == "exit":
        print("torch.OutOfMemoryError: CUDA out of memory", flush=True)
        sys.exit(1)
