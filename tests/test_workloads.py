"""Workloads: loading, the smoke mix, refusals with file and line, rendering, answers and the command line."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from records_fixture import tokenizer

import workloads
from methods.base import Refusal
from workloads import Message, Prompt, Workload, answers, render, suites
from workloads.__main__ import main


def line(prompt_id, category="chat", content="Hello there", **more):
    messages = [{"role": "user", "content": content}]
    return {"id": prompt_id, "category": category, "messages": messages, **more}


def write(path, lines):
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines))
    return path


@pytest.fixture
def builtin(tmp_path, monkeypatch):
    """Five small suites in place of the real ones."""
    for kind in suites.TYPES:
        prompts = [line(f"{kind}-{i}", kind, f"{kind} number {i}") for i in range(5)]
        write(tmp_path / f"{kind}.jsonl", prompts)
    write(tmp_path / "warmup.jsonl", [line("warmup-1", content="Warm up")])
    monkeypatch.setattr(suites, "BUILTIN_FOLDER", tmp_path)
    return tmp_path


def test_a_suite_is_its_file_and_the_warmup(builtin):
    chat = workloads.load("chat")
    assert [p.id for p in chat.prompts] == [f"chat-{i}" for i in range(5)]
    assert [p.id for p in chat.warmup] == ["warmup-1"]
    assert chat.prompts[0] == Prompt("chat-0", "chat", (Message("user", "chat number 0"),))


def test_smoke_takes_the_first_of_each_type_in_turn(builtin):
    smoke = workloads.load("smoke")
    assert [p.id for p in smoke.prompts] == [f"{kind}-{i}" for i in range(3) for kind in suites.TYPES]
    assert smoke.categories == suites.TYPES


def test_the_hash_is_of_what_is_asked_in_order(builtin, tmp_path):
    first, second = line("a", answer=None), line("b", content="ä")
    one = workloads.load("file", write(tmp_path / "one.jsonl", [first, second]))
    rewritten = [
        "",
        json.dumps(first, indent=None) + "\r",
        json.dumps(dict(reversed(second.items())), ensure_ascii=False),
    ]
    assert workloads.load("file", write(tmp_path / "two.jsonl", rewritten)).sha256 == one.sha256
    assert workloads.load("file", write(tmp_path / "three.jsonl", [second, first])).sha256 != one.sha256


def test_a_file_may_ask_a_warmup_prompt_which_then_does_not_warm_up(builtin, tmp_path):
    asked = workloads.load("file", write(tmp_path / "mine.jsonl", [line("mine", content="Warm up")]))
    assert asked.warmup == ()


def test_everything_of_a_prompt_is_read(tmp_path, builtin):
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
    path = write(
        tmp_path / "mine.jsonl", [{"id": "x", "category": "c", "messages": messages, "tools": [tool], "answer": "2"}]
    )
    prompt = workloads.load("file", str(path)).find("x")
    assert prompt.tools == (tool,) and prompt.answer == "2"
    assert prompt.text == "system: Be brief.\n\nuser: 1+1?"


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("{", "the line is not JSON"),
        ("[1]", "not a JSON object"),
        ("[" * 100_000, "nested too deeply"),
        (json.dumps({"id": "x", "category": "c"}), "messages or turns is missing"),
        (json.dumps(line("x", mesages=[])), "the key 'mesages' is not known"),
        (json.dumps(line(7)), "id is neither text nor null"),
        (json.dumps(line("")), "id and category are needed"),
        (json.dumps(line("x", content=" \n")), "the user message is empty"),
        (json.dumps(line("x", content="\ud800")), "half a surrogate pair"),
        (json.dumps(line("x", answer=4)), "answer is neither text nor null"),
        (json.dumps(line("x", tools={})), "tools is not a list of objects"),
        (json.dumps(line("x") | {"messages": []}), "messages is empty"),
        (json.dumps(line("x") | {"messages": "hi"}), "messages is not a list"),
        (json.dumps(line("x") | {"messages": [{"role": "user"}]}), "not an object of role and content"),
        (json.dumps(line("x") | {"messages": [{"role": "user", "content": 3}]}), "not both text"),
        (json.dumps(line("x") | {"messages": [{"role": "robot", "content": "hi"}]}), "role 'robot' is not accepted"),
        (json.dumps(line("x") | {"messages": [{"role": "assistant", "content": "hi"}]}), "the last message"),
        (json.dumps(line("first")), "the id 'first' was already given in line 1"),
        (json.dumps(line("second")), "the same prompt was already given in line 1"),
        (json.dumps(line("x", content="x" * 4_000_001)), "4,000,001 characters long: at most 4,000,000 are accepted"),
        (json.dumps(line("x", turns=["hi"])), "messages and turns are both given"),
        (json.dumps({"turns": "hi"}), "turns is not a list of texts, at least one"),
        (json.dumps({"turns": []}), "turns is not a list of texts, at least one"),
        (json.dumps({"turns": ["hi", ""]}), "the user message is empty"),
        (json.dumps({"turns": ["hi"], "system": 3}), "system is neither text nor null"),
        (json.dumps({"turns": ["hi"], "system": " "}), "the system message is empty"),
    ],
)
def test_damage_is_one_sentence_with_file_and_line(builtin, tmp_path, bad, said):
    path = write(tmp_path / "mine.jsonl", [line("first"), "", bad])
    with pytest.raises(Refusal) as refused:
        workloads.load("file", path)
    message = str(refused.value)
    assert message.startswith(f"{path}, line 3: ") and said in message
    assert message.endswith(".") and "\n" not in message


def test_turns_system_and_what_may_be_left_out(builtin, tmp_path):
    first = {"turns": ["1+1?", "And twice that?"], "system": "Be brief.", "answer": "2"}
    path = write(tmp_path / "mine.jsonl", [first, "", {"turns": ["Hi"], "id": None, "category": "talk"}])
    one, two = workloads.load("file", path).prompts
    assert one == Prompt(
        *("line-1", "file", (Message("system", "Be brief."), Message("user", "1+1?"))),
        answer="2",
        follow_ups=("And twice that?",),
    )
    assert (two.id, two.category, two.where) == ("line-3", "talk", f"{path}, line 3")


def test_bad_lines_are_left_out_and_counted_at_the_users_wish(builtin, tmp_path, capsys):
    good = [line("a", content="A"), line("b", content="B")]
    path = write(tmp_path / "mine.jsonl", [good[0], "{", good[1], line("a", content="C"), line("d", content="A")])
    loaded = workloads.load("file", path, skip_bad=True)
    assert [p.id for p in loaded.prompts] == ["a", "b"]
    assert [sentence.rpartition("mine.jsonl, ")[2] for sentence in loaded.skipped] == [
        "line 2: the line is not JSON (Expecting property name enclosed in double quotes, character 2).",
        "line 4: the id 'a' was already given in line 1.",
        "line 5: the same prompt was already given in line 1.",
    ]
    assert main(["show", "file", "--path", str(path), "--skip-bad"]) == 0
    shown = capsys.readouterr().out
    assert "2 prompts, 3 left out" in shown and shown.count("left out: ") == 3
    with pytest.raises(Refusal, match=r"holds no good prompts: all 1 were left out, the first as .*line 1"):
        workloads.load("file", write(tmp_path / "bad.jsonl", ["{"]), skip_bad=True)
    with pytest.raises(Refusal, match="skip_bad=true is not accepted with workload=chat"):
        workloads.load("chat", skip_bad=True)


def test_wrong_encoding_and_empty_files(builtin, tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_bytes(
        json.dumps(line("a")).encode()
        + b"\n"
        + json.dumps(line("b", content="é"), ensure_ascii=False).encode("latin-1")
    )
    with pytest.raises(Refusal, match="line 2: the line is not UTF-8 text"):
        workloads.load("file", path)
    path.write_bytes("\ufeff".encode() + json.dumps(line("a")).encode())
    assert len(workloads.load("file", path).prompts) == 1
    path.write_text("\n\n")
    with pytest.raises(Refusal, match="holds no prompts"):
        workloads.load("file", path)


@pytest.mark.parametrize(
    ("name", "path", "said"),
    [
        ("chess", None, "workload=chess is not known: a name that `python -m workloads list` shows"),
        ("gsm8", None, r"did you mean gsm8k\?"),
        ("file", None, "workload=file needs workload.path"),
        ("chat", "x.jsonl", "workload.path=x.jsonl is not accepted with workload=chat"),
        ("file", "no/such.jsonl", "cannot be read"),
        ("file", ".", "cannot be read"),
    ],
)
def test_names_and_paths_are_checked(builtin, name, path, said):
    with pytest.raises(Refusal, match=said):
        workloads.load(name, path)


def test_a_workload_keeps_its_promises():
    hello, again = Prompt("a", "c", (Message("user", "hi"),)), Prompt("b", "c", (Message("user", "hi"),))
    with pytest.raises(Refusal, match="more than once"):
        Workload("w", (hello, hello))
    with pytest.raises(Refusal, match="warm-up"):
        Workload("w", (hello,), (again,))
    with pytest.raises(Refusal, match="no prompts"):
        Workload("w", ())
    with pytest.raises(Refusal, match="it has a"):
        Workload("w", (hello,)).find("z")


# Rendering

THINKING = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% for t in tools or [] %}[{{ t.name }}]{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}<no>{% endif %}"
)
PLAIN = (
    "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    "{{ raise_exception('no') if messages|length > 1 }}"
)


def chat_tokenizer(template):
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=tokenizer(), chat_template=template, bos_token="!")


def test_rendering_through_the_template():
    made = chat_tokenizer(THINKING)
    prompt = Prompt("a", "c", (Message("system", "s"), Message("user", "The sum")), ({"name": "add"},))
    assert made.decode(render(made, prompt)) == "<system>s<user>The sum[add]<assistant><no>"
    assert made.decode(render(made, prompt, enable_thinking=True)) == "<system>s<user>The sum[add]<assistant>"
    assert render(made, prompt) == render(made, prompt) and all(type(i) is int for i in render(made, prompt))
    plain = chat_tokenizer(PLAIN)
    assert plain.decode(render(plain, Prompt("a", "c", (Message("user", "The sum"),)))) == "!The sum"


def test_what_a_template_cannot_say_is_refused():
    plain, user = chat_tokenizer(PLAIN), Message("user", "hi")
    with pytest.raises(Refusal, match="offers tools"):
        render(plain, Prompt("a", "c", (user,), ({"name": "add"},)))
    with pytest.raises(Refusal, match="enable_thinking=true is not accepted"):
        render(plain, Prompt("a", "c", (user,)), enable_thinking=True)
    with pytest.raises(Refusal, match="cannot be rendered by the target's chat template: no"):
        render(plain, Prompt("a", "c", (Message("system", "s"), user)))
    with pytest.raises(Refusal, match="no chat template"):
        render(SimpleNamespace(chat_template=None), Prompt("a", "c", (user,)))


# Answers


def asked(answer, tools=()):
    return Prompt("a", "c", (Message("user", "?"),), tools, answer)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("7 + 5 = 12", True),
        ("The answer is 12.", True),
        ("12.0", True),
        ("#### 12\nThat used 3 steps.", True),
        (r"\boxed{12} after 3 steps", True),
        ("12 apples, minus 3", False),
        ("-12", False),
        ("112", False),
        ("x12", False),
        ("none", False),
        ("", False),
    ],
)
def test_final_numbers(text, right):
    assert answers.correct(asked("12"), text) is right


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9, places=2))
def test_numbers_are_read_as_they_are_written(value):
    for text in (f"{value:f}", f"{value:,f}"):
        assert answers.final_number(f"It is {text}.") == value == answers.number(text)


def test_more_number_forms():
    assert answers.correct(asked("1,250"), "a total of $1250.00")
    assert answers.correct(asked("-3"), "= −3")
    assert answers.final_number("12-5") == 5


CALL = '{"name": "add", "arguments": {"a": 1, "b": [true, "x"]}}'
TOOLS = ({"name": "add"},)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (CALL, True),
        ('<tool_call>\n{"arguments": {"b": [true, "x"], "a": 1}, "name": "add"}\n</tool_call>', True),
        ("Sure: ```json\n" + CALL + "\n```", True),
        ("[" + CALL + "]", True),
        ('{"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": [true, \\"x\\"]}"}', True),
        ("<tool_call>" + CALL, True),
        ('{"name": "add", "arguments": {"a": true, "b": [true, "x"]}}', False),
        ('{"name": "sub", "arguments": {"a": 1, "b": [true, "x"]}}', False),
        (CALL + CALL, False),
        ("<tool_call>{oops</tool_call>", False),
        (f"<tool_call>{CALL}</tool_call><tool_call>", False),
        ("{{{", False),
        ("no call", False),
    ],
)
def test_tool_calls(text, right):
    assert answers.correct(asked(CALL, TOOLS), text) is right


def test_several_calls_and_answers_in_words():
    other = CALL.replace("add", "sub")
    assert answers.correct(asked(f"[{CALL}, {other}]", TOOLS), CALL + "\n" + other)
    assert not answers.correct(asked(f"[{CALL}, {other}]", TOOLS), other + CALL)
    assert answers.correct(asked("rain", TOOLS), 'It says "rain".')


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ('The document says "blue heron".', True),
        ("blue heron", True),
        ("“Blue  heron”", False),
        ("Blue heron.", False),
        ("«blue heron»", True),
        ('"grey heron", not "blue heron"', True),
        ('"blue heron" or "grey heron"', False),
        ("It is the blue heron", False),
    ],
)
def test_quoted_strings(text, right):
    assert answers.correct(asked("blue heron"), text) is right


def test_no_answer_is_neither_right_nor_wrong():
    assert answers.correct(asked(None), "anything") is None


# The command line


def test_list_and_show(builtin, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in workloads.names()) and "15" in listed
    assert main(["show", "math"]) == 0
    assert "math-4" in capsys.readouterr().out
    assert main(["show", "math", "--id", "math-4"]) == 0
    assert "math number 4" in capsys.readouterr().out
    assert main(["show", "math", "--id", "math-9"]) == 2
    assert capsys.readouterr().err.startswith("prompt 'math-9' is not in workload 'math'")


def test_show_prints_markup_as_it_stands(builtin, tmp_path, capsys):
    path = write(tmp_path / "mine.jsonl", [line("[red]x[/red]", content="a [bold]list[/bold][0]", answer="[/]")])
    assert main(["show", "file", "--path", str(path)]) == 0
    assert main(["show", "file", "--path", str(path), "--id", "[red]x[/red]"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("a [bold]list[/bold][0]") == 2 and "[/]" in printed


def test_loading_needs_no_tensor_library():
    code = "import workloads, sys; print([m for m in ('torch', 'transformers', 'rich') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# The prompts that ship


@pytest.mark.parametrize("name", suites.TYPES)
def test_built_in_suites(name):
    suite = workloads.load(name)
    assert len(suite.prompts) >= 24 and suite.categories == (name,)
    assert len(suite.warmup) == 4
    assert all(answers.correct(prompt, prompt.answer) for prompt in suite.prompts if prompt.answer is not None)


def test_the_built_in_smoke_mix():
    smoke = workloads.load("smoke")
    assert len(smoke.prompts) >= 12 and smoke.categories == suites.TYPES


def test_ci_asks_four_of_each_type():
    ci = workloads.load("ci")
    assert [prompt.id for prompt in ci.prompts][:15] == [prompt.id for prompt in workloads.load("smoke").prompts]
    assert len(ci.prompts) == 20 and ci.categories == suites.TYPES


def test_full_asks_every_built_in_prompt_once():
    asked = [prompt.id for prompt in workloads.load("full").prompts]
    assert sorted(asked) == sorted(p.id for kind in suites.TYPES for p in workloads.load(kind).prompts)
    assert [prompt.category for prompt in workloads.load("full").prompts[:5]] == list(suites.TYPES)
