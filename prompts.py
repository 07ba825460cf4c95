"""Every prompt text and the dialogue that they make (App. B.3, C.3); the few that are ours say so.

Messages are chat turns [{"role": "system" | "user" | "assistant", "content": str}, ...]. Family
"olmo3" has the OLMES openings, any other family those of Qwen3; the later turns are the same for
all.
"""
import re

QWEN_MATH = (
    "You are a mathematics expert. You will be given a competition mathematics problem. Solve it "
    "and give the final answer. You may start by outlining your thought process. In the end, "
    "please put the final answer inside \\boxed{}.\n\n{problem}")
QWEN_LCB = (
    "You are a coding expert. You will be given a coding problem, and you need to write a correct "
    "Python program that matches the specification and passes all tests. The time limit is 1 "
    "second. You may start by outlining your thought process. In the end, please provide the "
    "complete code in a code block enclosed with ``` ```.\n\n{problem}")
QWEN_SIGNATURE = (
    "\n\nYour solution should have the following signature: ```python\n{signature}\n```")
QWEN_MBPP = (
    "You are a coding expert. You will be given a Python programming task and the tests your code "
    "must satisfy. Write a correct Python program that matches the specification and passes all "
    "tests. Keep the function names and signatures the tests require. You may start by outlining "
    "your thought process. In the end, please provide the complete code in a code block enclosed "
    "with ``` ```.\n\n{problem}\n\nYour code should pass these tests:\n{asserts}")
QWEN_SCIENCE = (
    "You are a scientific reasoning expert. You will be given a science task. Reason about it step "
    "by step, then give the final answer. In the end, write \"Final answer:\" followed by your "
    "complete final answer, in the format the task asks for.\n\n{problem}")

OLMO_MATH = "{problem}\n\nPresent the answer in LaTex format: \\boxed{Your answer}"
OLMO_LCB_SYSTEM = (
    "You are an expert Python programmer. You will be given a question (problem specification) and "
    "will generate a correct Python program that matches the specification and passes all tests.")
OLMO_LCB = (
    "### Question:\n{problem}\n\n### Format:\nProvide CONCISE reasoning on how to arrive at the "
    "answer in the <think> </think> tag.\n{format}\n\n### Answer: (use the provided format with "
    "backticks)\n\n")
OLMO_STARTER = (
    "You will use the following starter code to write the solution to the problem and enclose your "
    "code within delimiters.\n```python\n{starter_code}\n```")
OLMO_STDIN = (
    "Read the inputs from stdin solve the problem and write the answer to stdout (do not directly "
    "test on the sample inputs). Enclose your code within delimiters as follows. Ensure that when "
    "the python program runs, it reads the inputs, runs the algorithm and writes output to "
    "STDOUT.\n```python\n# YOUR CODE HERE\n```")
OLMO_MBPP = (
    "{problem}\n\nYour code should pass these tests:\n{asserts}\n\nProvide CONCISE reasoning on "
    "how to arrive at the answer, and make sure to finish the response with the following:\n\nHere "
    "is the completed function:\n\n```python\n(CODE)\n```\nwhere (CODE) is the code for the "
    "complete function.")
OLMO_SCIENCE = (
    "Answer the following science task. Provide CONCISE reasoning for the answer, and make sure to "
    "finish the response with \"Final answer:\" followed by your complete answer in the format the "
    "task asks for.\n\nTask: {problem}\n\nAnswer the above task and REMEMBER to finish your "
    "response with \"Final answer:\" followed by your complete answer.")

CODE_FEEDBACK = "Your previous answer was executed against the public tests. {verdict}\n{feedback}"
CODE_VERDICT = {
    1: "Your previous answer passed every public test.",
    0: "Your previous answer failed the public tests."}
CODE_NO_FEEDBACK = {
    1: "No failing test details were produced.",
    0: "No failing test details are available."}
CODE_IMPROVE = (
    "Use this execution feedback to improve your answer. Re-check the original problem yourself "
    "and produce a corrected complete answer.")
CHECKED_FEEDBACK = "Your previous answer was checked against the reference. {verdict}"
CHECKED_VERDICT = {
    1: "Your previous answer was judged correct.",
    0: "Your previous answer was judged incorrect."}
CHECKED_IMPROVE = (
    "Use this outcome to improve your answer. Re-check the original problem yourself and produce a "
    "corrected complete answer.")

BLIND = {
    "code": (
        "Review your previous answer carefully for reasoning, algorithmic, complexity, and "
        "implementation mistakes. Then produce a corrected complete answer to the original "
        "problem. Do not assume that any external correctness signal or test feedback is "
        "available."),
    "math": (
        "Review your previous answer carefully for errors in reasoning, algebra, arithmetic, and "
        "the handling of special or boundary cases. Then produce a corrected complete answer to "
        "the original problem. Do not assume that any external correctness signal is available."),
    "judge": (
        "Review your previous answer carefully for errors in scientific reasoning, the facts and "
        "relationships you relied on, unit and magnitude handling, and whether you addressed what "
        "the question actually asks. Then produce a corrected complete answer to the original "
        "problem. Do not assume that any external correctness signal is available."),
    # Ours, as is all for a verifier of the user's own.
    "own": (
        "Review your previous answer carefully for errors. Then produce a corrected complete "
        "answer to the original problem. Do not assume that any external correctness signal is "
        "available."),
}

JUDGE = (
    "You are an expert grader for science tasks. Decide whether the response to the task below is "
    "correct, using the reference answer as the ground truth.\n\n### Task\n{question}\n\n### "
    "Reference answer\n{reference}\n\n### Response\n{response}\n\n### Grading "
    "instructions\n{criterion}\nJudge the final answer the response gives; its style and length do "
    "not matter. Be strict but fair. A response that gives no final answer, hedges between several "
    "answers, or is cut off before answering is incorrect.\nExplain your judgment in at most three "
    "sentences, then end with yes if the response is correct or no if it is not.")
# The paper prints the final-result criterion alone; the other five are ours, in its manner.
CRITERIA = {
    "final_result": (
        "The response is correct if its final result is equivalent to the reference answer: the "
        "same formula, value, expression, structure or material, allowing equivalent notation, "
        "units and rounding. The reasoning does not need to match the reference. If the reference "
        "answers several parts, every part must match."),
    "relation_set": (
        "The response is correct if it states the same set of relations as the reference answer: "
        "every pair or triplet of the reference is there and no other is added, allowing a "
        "different order, bracketing, capitalization, common abbreviations and synonyms of the "
        "same entity. Where a relation has a direction or a type, it must agree in meaning. If the "
        "reference says that there is no relation, the response must say so too. An end marker "
        "such as END is no part of the reference."),
    "composition": (
        "The response is correct if it lists the same components as the reference answer, each "
        "with the same proportion: none is missing and none is added, allowing a different order, "
        "element names instead of symbols, equivalent units and rounding. A bound or a range, such "
        "as at most 0.20%, must be the same bound or range. The layout of the table does not "
        "matter."),
    "summary": (
        "The response is correct if its summary states the main finding or conclusion of the text "
        "as the reference answer does, allowing other wording and another choice of minor details. "
        "A summary that misses the central point, contradicts the text or the reference, or claims "
        "what the text does not support is incorrect. One that copies the text instead of "
        "summarizing it is incorrect too."),
    "key_content": (
        "The response is correct if it covers the key content of the reference answer: the "
        "essential items or steps, and the order of the steps where it matters, allowing other "
        "wording, equivalent materials or methods, and further items that do no harm. Minor "
        "details, brands and exact amounts may differ unless the result depends on them. A "
        "response that misses an essential item or step, or has one that would make the procedure "
        "fail, is incorrect."),
    "derivation": (
        "The response is correct if it derives the result of the reference answer by a valid "
        "argument, allowing equivalent notation, another valid route and omitted routine algebra. "
        "The derived result must be equivalent to that of the reference. A wrong or unjustified "
        "essential step, or a result that is stated without being derived, makes the response "
        "incorrect. If the reference derives several results, every one must be derived."),
}


# The compressions of a long response that ask the model (App. G.2, Table 24). Their texts are ours:
# the paper does not print its own.
SUMMARIZE = (
    "Summarize your answer above in at most {tokens} tokens, so that you can revise it later "
    "without seeing it. Keep the approach, the intermediate results that matter, and the complete "
    "final answer.")
BLOCK = (
    "After your complete answer, end with a summary of it between <summary> and </summary>, in at "
    "most {tokens} tokens: the approach, the intermediate results that matter, and what you are "
    "unsure of.")


# The baselines (C.5, E.3): the rewriting of SFT and the teacher of SDPO are the paper's, SEED's two
# are ours.
SESSION = (
    "Below is an earlier solving session for this problem: earlier attempts, the feedback on them, "
    "and a final solution that was verified to be correct.\n\n<session>\n{transcript}\n</session>")
NO_SESSION = "Below is a solution to this problem that was verified to be correct."
REWRITE = (
    "{problem}\n\n{session}\n\n<correct_solution>\n{solution}\n</correct_solution>\n\nRewrite the "
    "correct solution into a complete, self-contained solution to the problem, written as if you "
    "were solving it for the first time. Remove the wrong attempts, the invalid derivations, the "
    "wrong intermediate results and every reference to earlier attempts, feedback, checking or "
    "corrections. Present the correct reasoning in a logical order, keeping its intermediate "
    "results. {ending}\nOutput only the rewritten solution.")
REWRITE_ENDING = {
    "math": (
        "The final answer must be exactly the same as in the correct solution: end with "
        "\\boxed{{answer}}."),
    "code": (
        "The final answer must be the same complete program as in the correct solution, in a "
        "single ```python code block."),
    "judge": (
        "The final answer must be exactly the same as in the correct solution: end with \"Final "
        "answer:\" followed by it."),
    "own": "The final answer must be exactly the same as in the correct solution.",
}
SDPO_TEACHER = "{problem}{solution}{feedback}\n\nCorrectly solve the original question."
SDPO_SOLUTION = "\nCorrect solution:\n\n{solution}"
SDPO_FEEDBACK = (
    "\nThe following is feedback from your unsuccessful earlier attempt:\n\n{feedback}")
ANALYZE = (
    "{problem}\n\n<attempt>\n{response}\n</attempt>\n\nThe attempt above was graded: it is "
    "{verdict}.{feedback}\n\nWrite down what is to be learned from it. After a correct attempt the "
    "skill is the workflow that led to it, after an incorrect one a rule that avoids its mistake; "
    "it must help with this task and not give its answer away. Reply with one JSON object and "
    "nothing else: {\"summary\": \"what the attempt did\", \"skill\": \"the skill\"}")
WITH_SKILL = "{problem}\n\nA skill that may help with this task:\n{skill}"


def fill(template, **fields):
    """`template` with each {name} of `fields` replaced, in one pass.

    Other braces mean nothing, in the template and in the values: LaTeX and code are full of them.
    """
    return re.sub(r"\{(" + "|".join(fields) + r")\}", lambda match: fields[match[1]], template)


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


def signature(starter_code):
    """The def line that the Qwen text shows, without self."""
    before, def_, rest = starter_code.partition("def ")
    return (def_ + rest.strip() if def_ else before.strip()).replace("(self, ", "(")


def opening(problem, family):
    """-> messages of the plain prompt x: a user turn; Olmo's on LiveCodeBench has a system turn."""
    olmo = family == "olmo3"
    if problem.verifier == "own":
        return [user(problem.text)]  # the user's prompt, as it stands
    if problem.verifier == "math":
        return [user(fill(OLMO_MATH if olmo else QWEN_MATH, problem=problem.text))]
    if problem.verifier == "judge":
        return [user(fill(OLMO_SCIENCE if olmo else QWEN_SCIENCE, problem=problem.text))]
    if problem.tests["type"] == "assert":
        return [user(olmo_mbpp(problem) if olmo else qwen_mbpp(problem))]
    if olmo:
        return [{"role": "system", "content": OLMO_LCB_SYSTEM}, user(olmo_lcb(problem))]
    return [user(qwen_lcb(problem))]


def qwen_mbpp(problem):
    asserts = "\n".join([*problem.tests["public"], *problem.imports])
    return fill(QWEN_MBPP, problem=problem.text, asserts=asserts)


def olmo_mbpp(problem):
    text = f"{problem.text}\n{problem.header}" if problem.header else problem.text
    return fill(OLMO_MBPP, problem=text, asserts="\n".join(problem.tests["public"]))


def qwen_lcb(problem):
    text = problem.text
    if problem.starter_code:
        text += fill(QWEN_SIGNATURE, signature=signature(problem.starter_code))
    return fill(QWEN_LCB, problem=text)


def olmo_lcb(problem):
    answer_format = OLMO_STDIN
    if problem.starter_code:
        answer_format = fill(OLMO_STARTER, starter_code=problem.starter_code)
    return fill(OLMO_LCB, problem=problem.text, format=answer_format)


def feedback_section(problem, reward, feedback):
    """The verdict on the previous answer and the feedback text f, which math and judge have not."""
    if problem.verifier != "code":
        verdict = fill(CHECKED_FEEDBACK, verdict=CHECKED_VERDICT[reward])
        has_text = problem.verifier == "own" and feedback
        return f"{verdict}\n{feedback}" if has_text else verdict
    text = feedback or CODE_NO_FEEDBACK[reward]
    return fill(CODE_FEEDBACK, verdict=CODE_VERDICT[reward], feedback=text)


def carry_turn(problem, reward, feedback):
    """The final user turn of a carry step: feedback section and improvement instruction."""
    improve = CODE_IMPROVE if problem.verifier == "code" else CHECKED_IMPROVE
    return feedback_section(problem, reward, feedback) + "\n\n" + improve


def carry(problem, family, response, reward, feedback, earlier=()):
    """-> messages of a carry step (Algorithm 1, line 10); `response` is cut by tail_L already.

    earlier: older (response, reward, feedback) rounds since the restart, oldest first ("last 3
    rounds", App. G.2); only the newest user turn asks for a revision.
    """
    messages = opening(problem, family)
    for old_response, old_reward, old_feedback in earlier:
        messages.append(assistant(old_response))
        messages.append(user(feedback_section(problem, old_reward, old_feedback)))
    messages.append(assistant(response))
    messages.append(user(carry_turn(problem, reward, feedback)))
    return messages


def carry_without_response(problem, family, reward, feedback):
    """-> messages of a carry step without the last response (App. G.2): one turn with x and f."""
    *system, first = opening(problem, family)
    return system + [user(first["content"] + "\n\n" + carry_turn(problem, reward, feedback))]


def restart(problem, family, draft):
    """-> messages of a restart step (Algorithm 1, line 7).

    A carry step without feedback (App. G.2) has the same.
    """
    return opening(problem, family) + [assistant(draft), user(BLIND[problem.verifier])]


def ask_for_block(messages, tokens):
    """-> messages whose user turns ask for a summary block of at most `tokens` (App. G.2)."""
    request = "\n\n" + fill(BLOCK, tokens=str(tokens))
    return [user(m["content"] + request) if m["role"] == "user" else m for m in messages]


def judge(problem, response):
    """-> messages for the judge (App. C.3); `response` is cut to its window already."""
    text = fill(
        JUDGE,
        question=problem.text,
        reference=problem.reference,
        response=response,
        criterion=CRITERIA[problem.criterion])
    return [user(text)]


def instead(opening, content):
    """-> the opening with another user turn; its system turn, if any, stays."""
    *system, _ = opening
    return system + [user(content)]


def rewrite(problem, opening, context, solution, answer):
    """-> messages that ask for a self-contained form of the right answer to `context` (SFT, E.3).

    answer: the content of the last box of `solution`, for math.
    """
    first = opening[-1]["content"]
    session, turns = NO_SESSION, [turn for turn in context if turn["role"] != "system"][1:]
    if turns:
        transcript = "\n\n".join(labelled(problem, turn) for turn in turns)
        session = fill(SESSION, transcript=transcript)
    ending = fill(REWRITE_ENDING[problem.verifier], answer=answer or "")
    text = fill(REWRITE, problem=first, session=session, solution=solution, ending=ending)
    return instead(opening, text)


def labelled(problem, turn):
    """A turn of the transcript under its label; a user turn without a verdict is no feedback."""
    label = "[Earlier attempt]"
    if turn["role"] == "user":
        checked = CODE_FEEDBACK if problem.verifier == "code" else CHECKED_FEEDBACK
        start = checked.partition(" {verdict}")[0]
        label = "[Feedback]" if turn["content"].startswith(start) else "[Problem prompt]"
    return f"{label}\n{turn['content']}"


def sdpo_teacher(opening, solution, feedback):
    """-> messages of SDPO's teacher; a text that is None is left out."""
    return instead(opening, fill(
        SDPO_TEACHER, problem=opening[-1]["content"],
        solution=fill(SDPO_SOLUTION, solution=solution) if solution else "",
        feedback=fill(SDPO_FEEDBACK, feedback=feedback) if feedback else ""))


def analyze(opening, response, reward, feedback):
    """-> messages of SEED's analyzer."""
    return instead(opening, fill(
        ANALYZE, problem=opening[-1]["content"], response=response,
        verdict="correct" if reward else "incorrect", feedback=feedback and f"\n{feedback}"))


def with_skill(opening, skill):
    """-> messages of SEED's teacher."""
    return instead(opening, fill(WITH_SKILL, problem=opening[-1]["content"], skill=skill))
