"""A serving engine without a model: HTTP on loopback, token ids in, token ids out as server-sent events, with a batch
limit, chosen speeds and faults; and the client that speaks to it.

Faults go by prompt id: `500`, `hang` and `die` (after the first chunk), `garbage`, `silent` (accepts and never
answers), `cut` (ends without a finish reason), `empty` (finishes without a token).
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

from methods.base import Request
from methods.streaming import Chunk


def truth(prompt_ids, n):
    """The tokens that the server answers a prompt with."""
    return tuple((sum(prompt_ids) + t) % 997 for t in range(n))


@dataclass
class FakeServer:
    """`prefill_s` until the first token, then `token_s` a token in chunks of `chunk` (after a first one of 1).
    `stall` is (from, until): no chunk leaves in these seconds after the start."""

    prefill_s: float = 0.01
    token_s: float = 0.01
    chunk: int = 1
    max_batch: int = 64
    stall: tuple[float, float] = (0.0, 0.0)
    faults: dict[str, str] = field(default_factory=dict)
    running: int = 0
    peak: int = 0
    connected: int = 0
    served: list[str] = field(default_factory=list)

    async def __aenter__(self):
        self.start_s = asyncio.get_running_loop().time()
        self.batch = asyncio.Semaphore(self.max_batch)
        self.handlers = set()
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc):
        self.server.close()
        for handler in self.handlers:
            handler.cancel()
        await asyncio.gather(*self.handlers, return_exceptions=True)

    async def _serve(self, reader, writer):
        task = asyncio.current_task()
        self.handlers.add(task)
        self.connected += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next(
                int(line.split(":")[1]) for line in head.split("\r\n") if line.lower().startswith("content-len")
            )
            asked = json.loads(await reader.readexactly(length))
            gone = asyncio.create_task(reader.read())  # ends when the client hangs up
            answer = asyncio.create_task(self._answer(writer, asked, self.faults.get(asked["prompt_id"], "")))
            try:
                await asyncio.wait([gone, answer], return_when=asyncio.FIRST_COMPLETED)
            finally:
                gone.cancel()
                answer.cancel()
                await asyncio.gather(gone, answer, return_exceptions=True)
        finally:
            self.connected -= 1
            self.handlers.discard(task)
            writer.close()

    async def _answer(self, writer, asked, fault):
        async with self.batch:
            self.running += 1
            self.peak = max(self.peak, self.running)
            try:
                await self._stream(writer, asked, fault)
            finally:
                self.running -= 1

    async def _stream(self, writer, asked, fault):
        if fault == "silent":
            await asyncio.sleep(1e6)
        if fault == "500":
            writer.write(b"HTTP/1.1 500 Internal Server Error\r\n\r\nout of memory\n")
            return await writer.drain()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        send(writer, {"role": "assistant", "token_ids": []})  # as OpenAI's protocol does: no first token yet
        await asyncio.sleep(self.prefill_s)
        tokens = truth(asked["prompt_ids"], 0 if fault == "empty" else asked["max_new_tokens"])
        at = 0
        while at < len(tokens):
            size = min(self.chunk, len(tokens) - at) if at else 1
            await asyncio.sleep(self.token_s * size if at else 0)
            await self._stalled()
            send(writer, {"token_ids": tokens[at : at + size]})
            await writer.drain()
            at += size
            if fault == "hang":
                await asyncio.sleep(1e6)
            if fault == "die":
                return writer.transport.abort()
            if fault == "garbage":
                writer.write(b"data: {\x00oops\n\n")
        if fault != "cut":
            send(writer, {"token_ids": [], "finish_reason": "length"})
        self.served.append(asked["prompt_id"])
        await writer.drain()

    async def _stalled(self):
        now = asyncio.get_running_loop().time() - self.start_s
        if self.stall[0] <= now < self.stall[1]:
            await asyncio.sleep(self.stall[1] - now)


def send(writer, event):
    writer.write(b"data: " + json.dumps(event).encode() + b"\n\n")


@dataclass
class FakeClient:
    """What a serving engine's client looks like: one connection a request."""

    port: int

    async def stream(self, request: Request):
        clock = asyncio.get_running_loop().time
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            body = {"prompt_ids": request.prompt_ids, "max_new_tokens": request.max_new_tokens}
            body = json.dumps({**body, "prompt_id": request.prompt_id}).encode()
            writer.write(b"POST /generate HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            status = int((await reader.readline()).split()[1])
            await reader.readuntil(b"\r\n\r\n" if status == 200 else b"\r\n")
            if status != 200:
                raise ConnectionError(f"the server answered {status}: {(await reader.read()).decode().strip()}")
            while line := await reader.readline():
                now = clock()
                if line.strip():
                    event = parse(line)
                    yield Chunk(tuple(event["token_ids"]), now, event.get("finish_reason"))
        finally:
            writer.close()


def parse(line):
    try:
        return json.loads(line.removeprefix(b"data: "))
    except ValueError:
        raise ValueError(f"the server streamed what is no JSON: {line[:40]!r}") from None
