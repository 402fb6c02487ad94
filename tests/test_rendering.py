"""Rendering through templates in the style of Qwen3, Llama 3 and the built-in pair; later turns; context buckets."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any

import pytest

import workloads
from methods.base import Refusal
from methods.locate import resolve
from workloads import Message, Prompt, contexts, render
from workloads.rendering import ids_sha256, next_turn, with_system

QWEN3 = (
    "{%- if tools %}{{- '<|im_start|>system\\n' }}{%- if messages[0].role == 'system' %}"
    "{{- messages[0].content + '\\n\\n' }}{%- endif %}{{- '# Tools\\n\\n<tools>' }}{%- for tool in tools %}{{- '\\n' }}"
    "{{- tool | tojson }}{%- endfor %}{{- '\\n</tools><|im_end|>\\n' }}{%- elif messages[0].role == 'system' %}"
    "{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}"
    "{%- for message in messages %}{%- set content = message.content %}"
    "{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}"
    "{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}"
    "{%- elif message.role == 'assistant' %}"
    "{{- '<|im_start|>assistant\\n' + content.split('</think>')[-1].lstrip('\\n') + '<|im_end|>\\n' }}{%- endif %}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
    "{%- endif %}"
)
LLAMA3 = (
    "{{- '<|begin_of_text|>' }}{%- if messages[0]['role'] == 'system' %}"
    "{%- set system_message = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}{%- else %}"
    "{%- set system_message = '' %}{%- endif %}{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}"
    "{%- if tools is not none and tools %}{{- 'Environment: ipython\\n' }}{%- for t in tools %}{{- t | tojson }}"
    "{%- endfor %}{%- endif %}{{- system_message }}{{- '<|eot_id|>' }}{%- for message in messages %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim }}"
    "{{- '<|eot_id|>' }}{%- endfor %}{%- if add_generation_prompt %}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"
)
USER = Message("user", "What is 2+2?")
PLAIN = Prompt("p", "math", (USER,))
TOOLS = Prompt("p", "tools", (USER,), ({"name": "add"},))
TALK = Prompt("p", "chat", (USER,), answer="4", follow_ups=("And 3+3?", "Thanks."))


@cache
def tokenizer(template: str | None = None) -> Any:
    """The built-in pair's tokenizer, with another template where one is given."""
    from transformers import AutoTokenizer

    made = AutoTokenizer.from_pretrained(resolve("builtin:tiny/target"))
    made.chat_template = template or made.chat_template
    return made


def text(template: str | None, prompt: Prompt, **options: Any) -> str:
    return tokenizer(template).decode(render(tokenizer(template), prompt, **options))


def test_qwen3():
    user = "<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n"
    assert text(QWEN3, PLAIN) == user + "<think>\n\n</think>\n\n"
    assert text(QWEN3, PLAIN, enable_thinking=True) == user
    system = "<|im_start|>system\nBe brief.<|im_end|>\n"
    assert text(QWEN3, with_system(PLAIN, "Be brief.")) == system + user + "<think>\n\n</think>\n\n"
    tools = '<|im_start|>system\nBe brief.\n\n# Tools\n\n<tools>\n{"name": "add"}\n</tools><|im_end|>\n'
    assert text(QWEN3, with_system(TOOLS, "Be brief."), enable_thinking=True) == tools + user


def test_llama3():
    head, end = "<|start_header_id|>{}<|end_header_id|>\n\n", "<|eot_id|>"
    start, user = "<|begin_of_text|>" + head.format("system"), head.format("user") + "What is 2+2?" + end
    assert text(LLAMA3, PLAIN) == start + end + user + head.format("assistant")
    assert text(LLAMA3, with_system(PLAIN, "Be brief.")) == start + "Be brief." + end + user + head.format("assistant")
    assert 'Environment: ipython\n{"name": "add"}' in text(LLAMA3, TOOLS)
    with pytest.raises(Refusal, match="enable_thinking=true is not accepted"):
        render(tokenizer(LLAMA3), PLAIN, enable_thinking=True)


def test_the_built_in_pair():
    user = "<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n"
    assert text(None, PLAIN) == user
    assert text(None, with_system(PLAIN, "Be brief.")) == f"<|im_start|>system\nBe brief.<|im_end|>\n{user}"
    assert '<tools>\n{"name": "add"}\n</tools>' in text(None, TOOLS)


@pytest.mark.parametrize(
    ("template", "golden"),
    [(None, "45312ea444fb0f67"), (QWEN3, "83667e6bd95881df"), (LLAMA3, "873c4471710fef96")],
)
def test_golden_ids(template, golden):
    """The ids of the smoke mix are what every stored acceptance length was measured on."""
    digest = hashlib.sha256()
    for prompt in workloads.load("smoke").prompts:
        digest.update(ids_sha256(render(tokenizer(template), prompt)).encode())
    assert digest.hexdigest()[:16] == golden


def test_a_system_prompt_beside_another_is_refused():
    with pytest.raises(Refusal, match="prompt 'p' has a system message of its own"):
        with_system(with_system(PLAIN, "Be brief."), "Be long.")


def test_later_turns_hold_the_answers_and_are_not_scored():
    second = next_turn(TALK, "<think>easy</think>\n\n It is 4.\n")
    assert [m.role for m in second.messages] == ["user", "assistant", "user"]
    assert second.follow_ups == ("Thanks.",) and second.answer is None and second.id == "p"
    assert "<|im_start|>assistant\nIt is 4.<|im_end|>\n<|im_start|>user\nAnd 3+3?<|im_end|>" in text(
        QWEN3, next_turn(TALK, " It is 4.\n")
    )
    assert "easy" not in text(QWEN3, second)  # Qwen3's template drops what was thought in earlier turns
    third = next_turn(second, " \n")
    assert third.messages[3].content == "…" and third.messages[-1].content == "Thanks." and not third.follow_ups


# Context buckets


def length(prompt: Prompt) -> int:
    return len(render(tokenizer(), prompt))


@pytest.mark.parametrize("bucket", [1024, 2048, 4096, 8192, 16384, 32768])
def test_a_bucket_is_filled_with_real_text(bucket):
    source = contexts.corpus()
    prompts = [workloads.load(name).prompts[0] for name in ("chat", "tool_calls", "math")]
    filled = [contexts.fill(prompt, source, bucket, length) for prompt in prompts]
    for prompt, longer in zip(prompts, filled, strict=True):
        assert 0.98 * bucket <= length(longer) <= bucket
        content = longer.messages[0].content
        assert content.endswith("\n\n" + prompt.messages[0].content) and longer.tools == prompt.tools
        context = content.removesuffix(prompt.messages[0].content).strip()
        whole = source.before(prompt)
        assert whole.startswith(context) and not whole[len(context) :][:1].isalnum()  # cut between words
    assert len({longer.messages[0].content[:200] for longer in filled}) == 3  # each begins at a place of its own
    assert contexts.fill(prompts[0], source, bucket, length) == filled[0]


def test_a_question_does_not_get_its_own_document_again():
    for prompt in workloads.load("long_context").prompts[:5]:
        content = contexts.fill(prompt, contexts.corpus(), 4096, length).messages[0].content
        assert all(content.count(passage) <= 1 for passage in contexts.corpus().passages)
        assert content.endswith(prompt.messages[0].content)


def test_the_built_in_documents_come_without_their_questions():
    documents = contexts.corpus().passages
    assert len(documents) == len(workloads.load("long_context").prompts)
    assert not [d for d in documents if "Question:" in d or "Quote" in d or "Read this document" in d]
    assert sum(map(len, documents)) > 130_000


def test_a_user_s_text(tmp_path):
    path = tmp_path / "book.txt"
    paragraphs = [f"Paragraph {i} tells of the {i}th day, on which {i * 7} boats came in." for i in range(120)]
    path.write_bytes(("\ufeff" + "\r\n\r\n".join([*paragraphs, paragraphs[0]])).encode())
    source = contexts.corpus(path)
    assert source.passages == tuple(paragraphs)
    filled = contexts.fill(PLAIN, source, 1024, length)
    assert 1004 <= length(filled) <= 1024
    used = [p for p in paragraphs if p in filled.messages[0].content]
    assert len(used) > 20 and all(filled.messages[0].content.count(p) == 1 for p in used)
    with pytest.raises(Refusal, match=r"all of .*book\.txt makes \d+ tokens; a longer text is accepted"):
        contexts.fill(PLAIN, source, 32768, length)


def test_a_text_without_blanks_is_cut_all_the_same(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("".join(chr(0x4E00 + i * 7919 % 20000) for i in range(3000)))
    assert 1004 <= length(contexts.fill(PLAIN, contexts.corpus(path), 1024, length)) <= 1024


def test_a_prompt_that_fills_its_bucket_stays_and_a_longer_one_is_refused():
    prompt = workloads.load("long_context").prompts[3]
    alone = length(prompt)
    assert contexts.fill(prompt, contexts.corpus(), alone, length) is prompt
    with pytest.raises(Refusal, match=f"workload.context=1024 is not accepted: prompt '{prompt.id}' alone has {alone}"):
        contexts.fill(prompt, contexts.corpus(), 1024, length)


def test_context_files_that_cannot_be_read(tmp_path):
    (tmp_path / "empty").write_text(" \n\n ")
    (tmp_path / "latin").write_bytes("é".encode("latin-1"))
    for name, said in (("none", "cannot be read"), ("empty", "holds no text"), ("latin", "UTF-8 text is")):
        with pytest.raises(Refusal, match=said):
            contexts.corpus(tmp_path / name)
