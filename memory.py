"""How the memory shows a response of more than L tokens: tail_L (section 2.2), and the compressions of Table 24.

The model's own summary is a further turn of the dialogue: explore.summarize.
"""
import programs
import verifiers


def shortened(problem, sample, how, length, tokenizer):
    """-> the text that stands for the response `sample`, or None where all of it is shown.

    how: tail | none | head-tail | summary | block | low-logprob; length: L, tokens. The paper's 1,000 and 500 tokens
    are L / 2 and L / 4 here.
    """
    def decode(ids):
        return tokenizer.decode(ids, skip_special_tokens=True)

    if how == "block" and (block := summary_block(problem, sample.text, length // 4, tokenizer)):
        return block  # always, also of a short response; where the model wrote none, the tail has to do
    ids, half = sample.token_ids, length // 2
    if len(ids) <= length or how in ("none", "summary"):
        return None
    if how == "head-tail":
        return decode(ids[:half]) + "\n...\n" + decode(ids[-half:])
    if how == "low-logprob":
        unlikely = sorted(range(len(ids)), key=lambda i: sample.logprobs[i])[:half]
        return decode([ids[i] for i in sorted(unlikely)])
    return decode(ids[-length:])


def summary_block(problem, response, length, tokenizer):
    """The last summary block of `response`, cut to `length` tokens, and its final code or answer; None without one."""
    before, tag, rest = response.rpartition("<summary>")
    block, end, after = rest.partition("</summary>")
    if not tag or not end:
        return None
    ids = tokenizer.encode(block.strip(), add_special_tokens=False)[:length]
    text = f"<summary>\n{tokenizer.decode(ids, skip_special_tokens=True)}\n</summary>"
    solution = final_part(problem, before + after)
    return f"{text}\n\n{solution}" if solution else text


def final_part(problem, solution):
    """The final code or answer of a response as it would be written; None without one."""
    if problem.verifier == "math":
        box = verifiers.last_boxed(solution)
        return box and f"\\boxed{{{box}}}"
    if problem.verifier == "code":
        program = programs.program_of(solution)
        return program and f"```python\n{program.rstrip()}\n```"
    _, mark, answer = solution.rpartition("Final answer:")
    return mark and f"{mark} {answer.strip()}"
