"""Servers that fail in every way: each request is answered once, with its seed, or the run ends with one sentence."""
import asyncio
import contextlib
import http.server
import json
import random
import socket
import threading

import pytest

import engines
from common.errors import BadInput
from engines import servers as servers_module
from engines.base import EngineDead
from engines.servers import Servers


class Scripted:
    """A server of OpenAI's API on this machine. `script`: what it does with each request from here on, a status or a
    function of the request; then it answers as it should, with tokens that follow from the seed."""

    def __init__(self, model, endpoint="/inference/v1/generate", raw_logprobs=False, window=500, key=None):
        self.greetings = []    # (status, content) of its first answers to GET
        self.model, self.endpoint, self.raw, self.window, self.key = model, endpoint, raw_logprobs, window, key
        self.script, self.asked, self.adapters = [], [], []
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def reply(self, status, content):
                body = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self):
                if server.key and self.headers["Authorization"] != f"Bearer {server.key}":
                    return self.reply(401, {})
                if server.greetings:
                    return self.reply(*server.greetings.pop(0))
                self.reply(200, {"data": [{"id": "served-name", "root": server.model, "max_model_len": server.window}]})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.post(self, body)

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def post(self, handler, body):
        if handler.path.endswith("lora_adapter"):
            self.adapters.append((handler.path, body))
            return handler.reply(200, b"Success")
        if handler.path != self.endpoint:
            return handler.reply(404, {"detail": "Not Found"})
        self.asked.append(body)
        step = self.script.pop(0) if self.script else None
        if isinstance(step, int):
            return handler.reply(step, {"error": "scripted"})
        content = self.content(body)
        if step:
            return step(handler, content)
        handler.reply(200, content)

    def content(self, body):
        params = body.get("sampling_params", body)
        rng = random.Random(params["seed"])
        ids = [rng.randrange(256) for _ in range(min(5, params["max_tokens"]))]
        likeliest = params["top_p"] < 1e-3 and not self.raw
        values = [0.0 if likeliest else -0.5] * len(ids)
        if "prompt" in body:
            logprobs = {"token_logprobs": values}
        else:
            logprobs = {"content": [{"token_id": i, "logprob": value} for i, value in zip(ids, values)]}
        return {"choices": [{"token_ids": ids, "finish_reason": "length", "logprobs": logprobs}]}


@pytest.fixture
def made(toy_model):
    """Make scripted servers; they end with the test."""
    with contextlib.ExitStack() as stack:
        def make(**options):
            server = Scripted(toy_model, **options)
            stack.callback(server.http.server_close)
            stack.callback(server.http.shutdown)
            return server
        yield make


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Without pauses: what they do is tested, not how long they take."""
    monkeypatch.setattr(servers_module, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(servers_module, "LONGEST_PAUSE", 0.02)


def settings(model, urls, patience=60.0):
    return engines.Settings(model, "qwen3", "served", "float32", 1.0, 1.0, 20, 0.9, None, 1, 1, tuple(urls), patience)


def ask(seed, **changes):
    return {"prompt_token_ids": [1, 2, 3], "seed": seed, "max_tokens": 20, "temperature": 1.0, "top_p": 1.0} | changes


def run(model, servers, *requests, patience=60.0, before=lambda: None):
    """Start the engine, call `before`, sample all requests at once. -> (engine, samples)."""
    async def sample_all():
        engine = await engines.start(settings(model, [server.url for server in servers], patience))
        before()
        return engine, await asyncio.gather(*(engine.sample(**request) for request in requests))
    return asyncio.run(sample_all())


def tokens(seed):
    rng = random.Random(seed)
    return [rng.randrange(256) for _ in range(5)]


@pytest.mark.parametrize("endpoint", ["/inference/v1/generate", "/v1/completions"])
def test_a_request_and_its_answer(made, toy_model, endpoint, capsys):
    server = made(endpoint=endpoint)
    engine, (sample,) = run(toy_model, [server], ask(11, temperature=0.5, priority=4))
    assert sample.token_ids == tokens(11) and sample.logprobs == [-0.5] * 5 and sample.prompt_tokens == 3
    assert sample.finish_reason == "length" and sample.text == engine.tokenizer.decode(tokens(11))
    assert engine.window == 500 and engine.gpus == 1
    sent = server.asked[-1]
    params = sent if "prompt" in sent else sent["sampling_params"]
    assert sent["model"] == "served-name" and sent["priority"] == 4
    assert [1, 2, 3] == (sent["prompt"] if "prompt" in sent else sent["token_ids"])
    assert {name: params[name] for name in ("seed", "max_tokens", "temperature", "top_p", "top_k", "min_p", "logprobs")} == {
        "seed": 11, "max_tokens": 20, "temperature": 0.5, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "logprobs": 0}
    assert params["stop_token_ids"] == engine.stop_ids
    line = capsys.readouterr().err
    assert endpoint in line and "log-probabilities after temperature and top-p" in line and ", seeds, priorities" in line


def test_what_a_server_lacks_is_said(made, toy_model, capsys):
    server = made(raw_logprobs=True)
    server.script = [400, None, lambda h, c: h.reply(200, c | {"choices": [{**c["choices"][0], "token_ids": [9, 9, 9, 9, 9]}]})]
    engine, (sample,) = run(toy_model, [server], ask(1, priority=3))
    line = capsys.readouterr().err
    assert "no priorities (steps" in line and "no seeds (no answer" in line and "or --compress low-logprob)" in line
    assert "priority" not in server.asked[-1] and sample.logprobs == []
    with pytest.raises(BadInput, match="processed_logprobs"):
        sample.log_mu()


@pytest.mark.parametrize("failure", [
    429, 503, lambda h, _: h.connection.shutdown(socket.SHUT_RDWR), lambda h, _: h.reply(200, b'{"choices": [')], ids=["429", "503", "closed", "cut"])
def test_a_failure_is_no_answer(made, toy_model, failure):
    """The request is sent again, the same to the seed, until it is answered."""
    server = made()
    _, samples = run(toy_model, [server], ask(3), ask(4), before=lambda: server.script.extend([failure] * 5))
    assert [sample.token_ids for sample in samples] == [tokens(3), tokens(4)]
    sent = [body["sampling_params"]["seed"] for body in server.asked[-7:]]
    assert sorted(sent) == sorted([3, 4] + sent[:5]) and set(sent) == {3, 4}


def test_servers_share_and_one_that_dies_hands_over(made, toy_model):
    first, second = made(), made()
    requests = [ask(seed) for seed in range(40)]
    _, samples = run(toy_model, [first, second], *requests)
    assert [sample.token_ids for sample in samples] == [tokens(seed) for seed in range(40)]
    counts = [sum(body["sampling_params"]["max_tokens"] == 20 for body in server.asked) for server in (first, second)]
    assert sum(counts) == 40 and min(counts) >= 15

    def die():
        first.http.shutdown()
        first.http.server_close()
    first.asked.clear()
    _, samples = run(toy_model, [first, second], *requests, before=die)
    assert [sample.token_ids for sample in samples] == [tokens(seed) for seed in range(40)]


def test_patience_ends(made, toy_model):
    server = made()
    with pytest.raises(EngineDead, match="no server has answered for 0.05 s .*status 503.*what is graded is kept"):
        run(toy_model, [server], ask(1), patience=0.05, before=lambda: server.script.extend([503] * 1000))


def test_a_silent_server_ends_with_patience(made, toy_model):
    server, end = made(), threading.Event()
    with pytest.raises(EngineDead, match="silent"):
        run(toy_model, [server], ask(1), patience=0.05, before=lambda: server.script.append(lambda h, _: end.wait(30)))
    end.set()


@pytest.mark.parametrize("change", [
    {"token_ids": None}, {"token_ids": []}, {"token_ids": list(range(21))}, {"logprobs": {"content": [{"logprob": -1.0}]}},
    {"finish_reason": "abort"}, {"token_ids": [10**9] * 5}, {"token_ids": [-1] * 5}, {"token_ids": ["1"] * 5}, {"token_ids": [1.0] * 5},
    {"logprobs": {"content": [{"logprob": float("nan")}] * 5}}, {"logprobs": {"content": [{"logprob": None}] * 5}}, {"logprobs": [1]}])
def test_an_answer_that_is_none(made, toy_model, change):
    server = made()
    wrong = lambda h, c: h.reply(200, {"choices": [c["choices"][0] | change]})  # noqa: E731
    with pytest.raises(BadInput, match="has not the token ids"):
        run(toy_model, [server], ask(1), before=lambda: server.script.append(wrong))


def test_a_model_that_is_gone(made, toy_model):
    server = made()
    with pytest.raises(BadInput, match="status 404"):
        run(toy_model, [server], ask(1), before=lambda: server.script.append(404))


def test_what_cannot_be_used_is_one_sentence(made, toy_model, monkeypatch):
    other = made()
    other.model = "some/other-model"
    for server, sentence in (
            (other, "serves served-name, not"), (made(key="secret"), "refuses the API key: set OPENAI_API_KEY"),
            (made(endpoint="/v1/chat/completions"), "must take and give token ids")):
        with pytest.raises(BadInput, match=sentence):
            run(toy_model, [server])
    for url in "http://127.0.0.1:9", "nonsense":
        with pytest.raises(BadInput, match="is no server of OpenAI's API"):
            asyncio.run(engines.start(settings(toy_model, [url])))
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    run(toy_model, [made(key="secret")], ask(1))


def test_adapters(made, toy_model, toy_adapters):
    """Each has a name of its own with all servers; the one before leaves them."""
    first, second = made(), made()

    async def sample():
        engine = await engines.start(settings(toy_model, [first.url, second.url]))
        for adapter in (toy_adapters[0], toy_adapters[0], toy_adapters[1]):
            await engine.sample(**ask(1, adapter=adapter))
    asyncio.run(sample())
    for server in (first, second):
        kinds, bodies = zip(*server.adapters)
        assert kinds == ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/load_lora_adapter")
        assert [body.get("lora_path") for body in bodies] == [toy_adapters[0], None, toy_adapters[1]]
        assert bodies[1]["lora_name"] == bodies[0]["lora_name"] != bodies[2]["lora_name"]
    names = [body["model"] for server in (first, second) for body in server.asked if body["model"] != "served-name"]
    assert len(names) == 3 and set(names) == {bodies[0]["lora_name"], bodies[2]["lora_name"]}


def test_flags_go_together(toy_model):
    import explore
    for flags in (["--engine", "served"], ["--server", "http://x"]):
        with pytest.raises(BadInput, match="go together"):
            explore.parse(["--bench", "arithmetic", "--model", toy_model, *flags])


def test_a_time_without_requests_is_no_silence(made, toy_model):
    """As an update is, or a laptop that was closed: what counts is how long a request has waited."""
    server = made()

    async def sample_after_a_pause():
        engine = await engines.start(settings(toy_model, [server.url], patience=60.0))
        engine.servers.last_answer -= 1000
        server.script.append(503)
        return await engine.sample(**ask(3))
    assert asyncio.run(sample_after_a_pause()).token_ids == tokens(3)


def test_a_server_that_is_still_starting(made, toy_model):
    server = made()
    server.greetings += [(503, {}), (429, {})]
    run(toy_model, [server], ask(1))
    assert not server.greetings


@pytest.mark.parametrize("status, content", [
    (404, {"error": "no"}), (307, {}), (200, {"data": None}), (200, {"data": ["a"]}), (200, {"data": {"id": 1}}), (200, {"data": [{}]}),
    (200, b"<html>"), (200, b"")])
def test_a_greeting_that_is_none(made, toy_model, status, content):
    server = made()
    server.greetings.append((status, content))
    with pytest.raises(BadInput, match="is no server of OpenAI's API"):
        run(toy_model, [server])


def test_a_window_that_is_no_number_and_a_key_that_is_none(made, toy_model, monkeypatch):
    server = made(window="512")
    engine, _ = run(toy_model, [server])
    assert engine.window == 2048  # the model's own
    monkeypatch.setenv("OPENAI_API_KEY", "sk-\u00e9")
    with pytest.raises(BadInput, match="OPENAI_API_KEY holds characters"):
        run(toy_model, [server])
