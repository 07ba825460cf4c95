"""The pages: what they hold, that hostile texts stay texts, and, in a browser, that they can be used."""
import base64
import gzip
import json
import math
import re
import shutil

import pytest

import distill
import evaluate
from common.errors import BadInput
from report import page

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\">$\\frac{<b>1</b>}{2}$ \\boxed{<i>7</i>}\n```html\n<script>\n```"


def data_of(path):
    text = path.read_text()
    packed = re.search(r'id="data">(.*?)</script>', text, re.S)[1]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def rollout(problem, step, **changes):
    restart = step % 5 == 1
    context = [{"role": "user", "content": f"What is {problem}?"}]
    context += [{"role": "assistant", "content": "a draft" if restart else f"answer {step - 1}"}, {"role": "user", "content": "Go on."}]
    return {
        "problem": problem, "bench": "own", "method": "leaf", "step": step, "restart": restart, "context": context,
        "response": f"answer {step}", "tail": None, "draft": "a draft" if restart else None, "completion_tokens": 3,
        "truncated": False, "reward": 0, "correct": 0, "feedback": "", "signature": None, "fault": None,
        "sample_seconds": 1.0} | changes


def write_rollouts(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


RIGHT = {"reward": 1, "correct": 1}


@pytest.fixture
def rollouts(tmp_path):
    """a: never solved; b: solved at once, lost again; c: solved at call 5 of 6, with a hostile answer."""
    changes = {("b", 1): RIGHT, ("c", 5): RIGHT | {"response": HOSTILE}, ("c", 6): RIGHT,
               ("a", 2): {"truncated": True}, ("a", 3): {"fault": "judge: no verdict"}, ("a", 4): {"reward": 1}}
    return write_rollouts(tmp_path / "rollouts.jsonl",
                          [rollout(p, step, **changes.get((p, step), {})) for p in "abc" for step in range(1, 7)])


def test_what_a_run_page_holds(rollouts, tmp_path):
    evaluate.main(["--rollouts", rollouts, "--html", str(tmp_path / "run.html")])
    run, = data_of(tmp_path / "run.html")["runs"]
    states = {problem["id"]: [attempt["state"] for attempt in problem["attempts"]] for problem in run["problems"]}
    assert states == {"a": ["wrong", "truncated", "fault", "public", "wrong", "wrong"],
                      "b": ["right"] + 5 * ["wrong"], "c": 4 * ["wrong"] + 2 * ["right"]}
    assert run["pass"] == [1 / 3] * 4 + [2 / 3] * 2
    first, second = run["problems"][0]["attempts"][:2]
    assert run["problems"][0]["opening"] == ["What is a?"]
    assert first["restart"] and first["turns"] == [["assistant", "the draft of this call", None], ["user", None, "Go on."]]
    assert not second["restart"] and second["turns"][0] == ["assistant", "answer 1", None]


def test_what_the_memory_drops(tmp_path):
    records = [rollout("a", 1, response="the beginning, the end", tail="the end"), rollout("a", 2)]
    records[1]["context"][1]["content"] = "the end"
    path = write_rollouts(tmp_path / "rollouts.jsonl", records)
    page.write_runs(str(tmp_path / "run.html"), [path])
    first, second = data_of(tmp_path / "run.html")["runs"][0]["problems"][0]["attempts"]
    assert first["response"][first["dropped"]:] == "the end"
    assert second["turns"][0] == ["assistant", "the end of answer 1", None]


def test_hostile_texts_are_packed(rollouts, tmp_path):
    page.write_runs(str(tmp_path / "run.html"), [rollouts])
    assert "onerror" not in (tmp_path / "run.html").read_text()
    assert data_of(tmp_path / "run.html")["runs"][0]["problems"][2]["attempts"][4]["response"] == HOSTILE


def test_a_page_that_would_be_too_large_is_cut_and_says_so(rollouts, tmp_path, monkeypatch):
    template = len(open(page.TEMPLATE).read())
    monkeypatch.setattr(page, "MOST_BYTES", template + 1_500)
    words = " ".join(str(i ** 3) for i in range(3_000))
    path = write_rollouts(tmp_path / "long.jsonl", [rollout("a", 1, response=words)])
    page.write_runs(str(tmp_path / "run.html"), [path])
    assert (tmp_path / "run.html").stat().st_size <= page.MOST_BYTES
    data = data_of(tmp_path / "run.html")
    answer = data["runs"][0]["problems"][0]["attempts"][0]["response"]
    half = data["most"] // 2
    assert answer == f"{words[:half]}\n[... {len(words) - 2 * half:,} characters are left out here ...]\n{words[-half:]}"
    assert page.cut("abc", 3) == "abc" and page.cut(None, 3) is None


@pytest.fixture(scope="module")
def distilled(toy_model, tmp_path_factory):
    """Two steps on three problems of C+, by the engine of transformers."""
    out = tmp_path_factory.mktemp("distilled")
    user = {"role": "user", "content": "1+1?"}
    lines = [{"problem": name, "bench": "own", "model": toy_model, "family": "qwen3",
              "decoding": {"temperature": 0.7, "top_p": 1.0, "max_tokens": 12}, "opening": [user],
              "context": [user, {"role": "assistant", "content": f"it is {name}"}, user], "response": f"so {name}", "step": 2}
             for name in "abc"]
    (out / "cplus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    distill.main(["--cplus", str(out / "cplus.jsonl"), "--steps", "2", "--batch", "3", "--lr", "1e-2", "--engine", "hf",
                  "--dtype", "float32", "--tau", "1e-2", "--out", str(out)])
    return out


def test_tokens_add_up_to_the_loss(distilled, tmp_path, capsys):
    """Eq. 3: the mean of w D over the tokens of step 1 is what the update was made of, with its cap."""
    evaluate.main(["--tokens", str(distilled), "--html", str(tmp_path / "tokens.html")])
    data = data_of(tmp_path / "tokens.html")
    first = json.loads((distilled / "distill.jsonl").read_text().splitlines()[0])
    tokens = [token for item in data["items"] for token in item["before"]]
    assert len(tokens) == first["response_tokens"]
    loss = math.fsum(token["w"] * token["D"] for token in tokens) / len(tokens)
    assert abs(loss - first["loss"]) < 1e-5
    assert f"{first['loss']:.7f}" in capsys.readouterr().out
    assert data["divergence"] == "reverse_kl" and data["tau"] == "0.01"
    for item in data["items"]:
        assert [token["D"] for token in item["after"]] != [token["D"] for token in item["before"]]
        assert "".join(token["text"] for token in item["before"])
        strong = [token for token in item["before"] if "entries" in token]
        least = min(abs(token["D"]) for token in strong)
        assert len(strong) == min(5, len(item["before"]))
        assert all(abs(token["D"]) <= least for token in item["before"] if token not in strong)
        for _, p, q, g, capped in (entry for token in strong for entry in token["entries"]):
            assert math.isclose(g, p * math.log(p / q), rel_tol=1e-3, abs_tol=1e-6) and capped == min(g, 0.01) or capped == pytest.approx(0.01)


def test_tokens_of_one_problem_and_its_answer_in_cplus(distilled, tmp_path):
    evaluate.main(["--tokens", str(distilled), "--problem", "b", "--tau", "inf", "--html", str(tmp_path / "tokens.html")])
    data = data_of(tmp_path / "tokens.html")
    assert [(item["problem"], item["source"]) for item in data["items"]] == [("b", "the student's response"), ("b", "the answer in C+")]
    answer = data["items"][1]
    assert "".join(token["text"] for token in answer["before"]) == "so b<|im_end|>"
    assert all(token["w"] is None for token in answer["before"])
    assert all(token["D"] > -1e-6 for item in data["items"] for token in item["before"])  # a whole KL divergence


@pytest.mark.parametrize("args,sentence", [
    (["--tokens", "nowhere"], "holds no run of distill.py"),
    (["--tokens", "OUT", "--problem", "z"], "no response to z"),
])
def test_bad_input(distilled, tmp_path, args, sentence):
    args = [str(distilled) if arg == "OUT" else arg for arg in args]
    with pytest.raises(BadInput, match=sentence):
        evaluate.main([*args, "--html", str(tmp_path / "tokens.html")])


# ---------------------------------------------------------------------------------------------------------------------
# In a browser


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = shutil.which("chromium") or shutil.which("google-chrome")
    with playwright.sync_playwright() as driver:
        try:
            browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        except playwright.Error:
            pytest.skip("no Chromium here")
        yield browser
        browser.close()


def opened(browser, path, fragment="", **options):
    """-> (the page when it is drawn, the errors of its console so far)."""
    tab, errors = browser.new_context(**options).new_page(), []
    tab.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.goto(f"file://{path}{fragment}")
    tab.wait_for_selector("body[data-ready]")
    return tab, errors


@pytest.mark.browser
def test_a_run_in_a_browser(browser, rollouts, tmp_path):
    page.write_runs(str(tmp_path / "run.html"), [rollouts])
    tab, errors = opened(browser, tmp_path / "run.html")
    assert tab.locator("tbody tr").count() == 3 and tab.locator("td.cell").count() == 18
    tab.click("td.cell[title^='c, call 5']")
    assert tab.locator("article.now").inner_text().startswith("Call 5:")
    assert "problem=c&step=5" in tab.url
    assert HOSTILE.splitlines()[0][:40] in tab.locator("article.now").inner_text()
    assert tab.locator("article img, article script").count() == 0 and tab.title() == "LEAF"
    for name, ids in ("never", ["a"]), ("late", ["c"]), ("lost", ["b"]):
        tab.select_option("#filter", name)
        assert tab.locator("tbody th").all_inner_texts() == ids
    tab.select_option("#filter", "")
    tab.select_option("#sort", "first")
    assert tab.locator("tbody th").all_inner_texts() == ["b", "c", "a"]
    tab.focus("td.cell[title^='b, call 1']")
    for key in ("ArrowDown", "ArrowRight", "Enter"):
        tab.keyboard.press(key)
    assert tab.locator("article.now").inner_text().startswith("Call 2:") and "problem=c&step=2" in tab.url
    tab.keyboard.press("Escape")
    assert tab.locator("article").count() == 0
    assert errors == []


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_a_link_opens_its_problem_at_any_width(browser, rollouts, tmp_path, width):
    page.write_runs(str(tmp_path / "run.html"), [rollouts])
    tab, errors = opened(browser, tmp_path / "run.html", "#problem=b&step=2&filter=lost", viewport={"width": width, "height": 800})
    assert tab.locator("article.now").inner_text().startswith("Call 2:")
    assert tab.locator("tbody th").all_inner_texts() == ["b"]
    assert tab.evaluate("document.documentElement.scrollWidth") <= width and errors == []


@pytest.mark.browser
def test_tokens_in_a_browser(browser, distilled, tmp_path):
    evaluate.main(["--tokens", str(distilled), "--problem", "a", "--html", str(tmp_path / "tokens.html")])
    tab, errors = opened(browser, tmp_path / "tokens.html", viewport={"width": 390, "height": 800})
    assert tab.locator(".chosen").count() == 2 and tab.locator(".token.strong").count() == 10
    tab.locator(".token").first.click()
    assert "side=before&token=0" in tab.url and tab.locator(".chosen").count() == 1
    tab.select_option("#item", "1")
    assert tab.locator(".token").last.inner_text() == "<|im_end|>"
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390 and errors == []
