"""The paper's own numbers, as plain data: what evaluate.py --paper shows below a run's, in the same columns.

Exploration and tests are means of three seeds; ablations and Tables 5, 7-9, 27-29 and 32 are single runs. % unless said
otherwise. The benches of training sets have the names that report.py gives them, such as "math500 (train)".
"""
QWEN, OLMO = "Qwen3-8B", "Olmo-3-7B-Instruct"
BENCHES = "math500", "lcb", "mbpp", "sciknoweval"
TRAIN = "lcb (train)", "math500 (train)", "sciknoweval (train)"

# Tables 11 and 13, 22 and 23, 25, for the four BENCHES: mean accuracy, pass@24, tokens processed in M (Table 13 calls
# them generated, but they are PFLOPs / 2 N; Table 25 counts others, left out), PFLOPs, GPU hours.
_EXPLORATION = {
    (QWEN, "random sampling"): (
        (84.14, 97.33, 12.1, 199, 0.30), (20.14, 41.48, 4.4, 73, 0.09),
        (72.71, 85.80, 5.4, 88, 0.10), (74.83, 85.17, 16.2, 265, 0.17)),
    (QWEN, "LEAF"): (
        (87.30, 96.73, 21.4, 350, 0.48), (29.89, 47.07, 8.5, 140, 0.46),
        (74.50, 86.07, 10.5, 172, 0.22), (80.32, 93.50, 23.3, 381, 0.31)),
    (QWEN, "LEAF, memory no-response"): (
        (84.07, 98.00, 17.1, 280, 0.55), (21.56, 46.56, 6.6, 108, 0.47),
        (71.88, 86.24, 8.5, 139, 0.17), (77.02, 88.00, 19.9, 326, 0.27)),
    (QWEN, "LEAF, memory no-feedback"): (
        (85.92, 95.60, 22.6, 371, 0.52), (22.30, 38.93, 8.5, 140, 0.49),
        (71.10, 83.60, 11.8, 194, 0.20), (80.67, 93.25, 26.5, 434, 0.35)),
    (QWEN, "LEAF, memory last3"): (
        (86.83, 95.20, 29.5, 483, 0.57), (30.31, 47.33, 11.9, 195, 0.58),
        (75.60, 86.51, 15.0, 246, 0.24), (81.12, 93.50, 27.6, 453, 0.35)),
    (QWEN, "LEAF, restart 2"): (
        (86.15, 97.60, 25.7, 421, 0.63), (24.71, 46.56, 10.0, 164, 0.46),
        (72.72, 86.77, 13.0, 213, 0.25), (79.30, 92.50, 25.6, 419, 0.33)),
    (QWEN, "LEAF, restart 10"): (
        (87.75, 95.80, 20.2, 331, 0.43), (31.71, 47.33, 8.2, 134, 0.50),
        (75.18, 84.92, 9.8, 160, 0.21), (81.52, 94.50, 22.4, 367, 0.29)),
    (QWEN, "LEAF, restart never"): (
        (88.47, 95.40, 19.2, 314, 0.39), (36.04, 47.33, 7.5, 124, 0.52),
        (76.17, 83.33, 8.9, 145, 0.20), (82.41, 93.25, 21.4, 351, 0.25)),
    (QWEN, "LEAF, update_every 1"): (
        (87.49, 96.60, None, 1507, 2.07), (28.98, 45.04, None, 312, 1.31),
        (74.61, 86.77, None, 739, 0.98), (80.97, 93.50, None, 999, 1.19)),
    (QWEN, "LEAF, update_every 2"): (
        (87.28, 96.60, None, 930, 1.57), (29.99, 46.56, None, 226, 1.24),
        (74.86, 87.04, None, 454, 0.70), (80.77, 93.00, None, 693, 0.86)),
    (QWEN, "LEAF, update_every 5"): (
        (87.07, 96.60, None, 542, 1.03), (28.31, 45.04, None, 170, 1.09),
        (74.64, 86.24, None, 266, 0.61), (80.44, 94.25, None, 484, 0.68)),
    (OLMO, "random sampling"): (
        (88.77, 97.73, 15.5, 227, 1.35), (20.94, 43.26, 10.8, 157, 1.45),
        (68.27, 85.10, 6.2, 90, 0.38), (68.74, 86.50, 13.8, 201, 0.23)),
    (OLMO, "LEAF"): (
        (93.44, 97.40, 30.8, 450, 2.16), (31.97, 55.22, 20.3, 296, 2.80),
        (75.74, 87.30, 16.7, 245, 1.01), (75.65, 98.08, 19.4, 284, 0.47)),
    (OLMO, "LEAF, memory no-response"): (
        (90.75, 97.80, 24.7, 361, 2.07), (22.39, 49.62, 16.2, 237, 2.41),
        (69.40, 86.77, 10.3, 151, 0.86), (70.09, 95.75, 17.1, 249, 0.42)),
    (OLMO, "LEAF, memory no-feedback"): (
        (92.86, 97.60, 38.5, 563, 2.98), (29.23, 53.44, 18.1, 264, 2.24),
        (73.41, 83.86, 22.7, 331, 1.42), (81.03, 100.00, 22.2, 324, 0.56)),
    (OLMO, "LEAF, memory last3"): (
        (93.25, 97.60, 43.1, 629, 2.66), (33.68, 56.49, 23.4, 341, 2.59),
        (75.72, 86.24, 24.6, 359, 1.12), (77.79, 98.50, 22.9, 334, 0.48)),
    (OLMO, "LEAF, restart 2"): (
        (92.78, 97.80, 38.4, 560, 2.85), (30.38, 54.96, 24.2, 354, 3.44),
        (74.34, 89.15, 21.4, 312, 1.36), (77.49, 99.50, 22.0, 321, 0.53)),
    (OLMO, "LEAF, restart 10"): (
        (94.25, 97.40, 28.3, 414, 1.94), (34.03, 57.25, 18.7, 273, 2.61),
        (76.87, 88.36, 15.2, 222, 0.87), (75.54, 96.75, 18.6, 272, 0.43)),
    (OLMO, "LEAF, restart never"): (
        (95.32, 97.80, 26.4, 386, 1.61), (35.18, 55.73, 17.1, 250, 2.17),
        (77.50, 84.66, 13.0, 190, 0.74), (73.72, 97.00, 17.6, 258, 0.45)),
    (OLMO, "LEAF, update_every 1"): (
        (93.59, 97.60, None, 1647, 4.91), (31.96, 56.49, None, 625, 4.91),
        (76.36, 87.30, None, 844, 2.57), (76.10, 99.25, None, 782, 1.58)),
    (OLMO, "LEAF, update_every 2"): (
        (93.27, 97.60, None, 1114, 3.94), (31.97, 54.20, None, 445, 4.17),
        (76.18, 86.77, None, 559, 2.10), (75.94, 98.00, None, 532, 1.20)),
    (OLMO, "LEAF, update_every 5"): (
        (93.57, 98.00, None, 671, 3.15), (32.00, 52.67, None, 348, 3.93),
        (76.23, 87.57, None, 346, 1.60), (76.72, 98.75, None, 366, 1.01)),
}
# Table 20, for the four BENCHES: tokens per answer.
_LENGTHS = {
    (QWEN, "random sampling"): (883, 841, 395, 344), (QWEN, "LEAF"): (694, 859, 382, 416),
    (OLMO, "random sampling"): (1175, 2821, 483, 207), (OLMO, "LEAF"): (1194, 3598, 791, 292),
}
_CAPPED = (OLMO, "math500", "LEAF, update_every 1"), (OLMO, "lcb", "LEAF, update_every 1")  # at step 22
# (model, bench, method): steps, then the above
EXPLORATION = {
    (model, bench, method): ("22" if (model, bench, method) in _CAPPED else "24", *cells, length)
    for (model, method), row in _EXPLORATION.items()
    for bench, cells, length in zip(BENCHES, row, _LENGTHS.get((model, method), [None] * 4))}

# Table 3: LEAF's length / that of random sampling, and its gain in pass rate, from the above and in the mean.
LENGTHS = {
    (model, bench): (leaf[-1] / EXPLORATION[model, bench, "random sampling"][-1],
                     leaf[2] - EXPLORATION[model, bench, "random sampling"][2])
    for (model, bench, method), leaf in EXPLORATION.items() if method == "LEAF"}
MEAN_LENGTH = (1.17, 4.88)

# Table 7: wrong answers, repeats.
REPEATS = {
    (QWEN, "math500"): (1912, 45.7), (QWEN, "lcb"): (2480, 61.8), (QWEN, "mbpp"): (1278, 77.3),
    (OLMO, "math500"): (1309, 47.4), (OLMO, "lcb"): (2452, 40.5), (OLMO, "mbpp"): (1675, 78.0),
}
# Table 8, LEAF against each other memory: problems; repeats: LEAF, theirs, difference, from, to; fixes: the same.
PAIRED = {
    ("LEAF", "LEAF, memory no-feedback"): {
        (QWEN, "math500"): (143, 52.5, 65.0, -12.5, -17.9, -7.4, 29.5, 19.8, 9.7, 4.2, 15.1),
        (QWEN, "lcb"): (115, 38.3, 67.6, -29.4, -35.8, -23.3, 16.6, 3.5, 13.0, 8.2, 18.1),
        (QWEN, "mbpp"): (114, 36.5, 79.2, -42.7, -49.0, -36.0, 54.6, 16.7, 37.9, 30.9, 44.9),
        (OLMO, "math500"): (72, 41.1, 52.8, -11.7, -20.0, -3.3, 40.1, 31.1, 9.0, 1.0, 16.9),
        (OLMO, "lcb"): (123, 24.1, 43.4, -19.3, -24.0, -14.8, 23.6, 15.5, 8.1, 3.9, 12.4),
        (OLMO, "mbpp"): (90, 22.8, 68.5, -45.7, -52.8, -38.6, 64.7, 25.8, 38.9, 30.7, 47.0)},
    ("LEAF", "LEAF, memory no-response"): {
        (QWEN, "math500"): (148, 51.6, 12.4, 39.2, 34.1, 44.4, 30.9, 53.0, -22.2, -28.0, -16.7),
        (QWEN, "lcb"): (117, 38.2, 23.8, 14.4, 9.6, 18.9, 17.3, 16.0, 1.3, -1.7, 4.4),
        (QWEN, "mbpp"): (126, 36.0, 27.3, 8.7, 2.8, 15.1, 55.4, 60.5, -5.1, -11.9, 1.2),
        (OLMO, "math500"): (77, 39.0, 13.9, 25.1, 18.0, 32.7, 44.0, 53.8, -9.8, -17.3, -3.2),
        (OLMO, "lcb"): (122, 24.3, 9.3, 15.0, 11.3, 18.6, 23.0, 18.4, 4.6, 0.7, 8.8),
        (OLMO, "mbpp"): (112, 20.9, 25.0, -4.1, -11.0, 3.0, 68.5, 59.1, 9.3, 1.0, 17.4)},
}
# Table 9, each memory against random sampling: transitions (not given), repeats, base frequency, ratio.
POOLED = {
    "LEAF": {
        (QWEN, "math500"): (None, 60.9, 16.6, 3.67), (QWEN, "lcb"): (None, 41.8, 23.3, 1.79),
        (QWEN, "mbpp"): (None, 55.4, 40.9, 1.35), (OLMO, "math500"): (None, 56.0, 21.0, 2.67),
        (OLMO, "lcb"): (None, 27.4, 9.7, 2.84), (OLMO, "mbpp"): (None, 36.4, 38.2, 0.95)},
    "LEAF, memory no-feedback": {
        (QWEN, "math500"): (None, 73.4, 17.3, 4.24), (QWEN, "lcb"): (None, 66.8, 30.2, 2.21),
        (QWEN, "mbpp"): (None, 85.0, 38.1, 2.23), (OLMO, "math500"): (None, 65.0, 23.8, 2.73),
        (OLMO, "lcb"): (None, 47.1, 10.5, 4.47), (OLMO, "mbpp"): (None, 78.9, 44.8, 1.76)},
}
# App. D.1: calls of random sampling / calls of LEAF, mean curve over both models and the four BENCHES. (Table 14 itself
# compares with SCoRe.)
CALLS_SPEED_UP = 4.07

# Tables 18 and 21: problems, avg@4, pass@4, tokens per answer, truncated, verifier faults (not given).
TESTS = {
    (QWEN, "lcb", "base model"): (131, 19.78, 31.55, 843, 0.00, None),
    (QWEN, "lcb", "adapter"): (131, 25.45, 34.86, 1167, 0.00, None),
    (QWEN, "math500", "base model"): (500, 84.08, 93.53, 879, 0.12, None),
    (QWEN, "math500", "adapter"): (500, 91.85, 96.20, 1864, 6.33, None),
    (QWEN, "sciknoweval", "base model"): (400, 74.40, 81.00, 341, 0.00, None),
    (QWEN, "sciknoweval", "adapter"): (400, 76.77, 82.25, 477, 0.13, None),
    (OLMO, "lcb", "base model"): (131, 21.25, 29.26, 2781, 2.61, None),
    (OLMO, "lcb", "adapter"): (131, 24.05, 36.13, 4264, 4.01, None),
    (OLMO, "math500", "base model"): (500, 89.12, 95.80, 1166, 2.95, None),
    (OLMO, "math500", "adapter"): (500, 90.62, 96.13, 1401, 4.00, None),
    (OLMO, "sciknoweval", "base model"): (400, 69.25, 80.50, 205, 0.15, None),
    (OLMO, "sciknoweval", "adapter"): (400, 74.35, 86.25, 398, 0.27, None),
}
# Table 19: forward and trained tokens, PFLOPs (none of them given by training set), GPU hours.
UPDATE = {
    (QWEN, "lcb (train)", "update"): (None, None, None, 0.49),
    (QWEN, "math500 (train)", "update"): (None, None, None, 0.98),
    (QWEN, "sciknoweval (train)", "update"): (None, None, None, 0.65),
    (OLMO, "lcb (train)", "update"): (None, None, None, 1.90),
    (OLMO, "math500 (train)", "update"): (None, None, None, 1.46),
    (OLMO, "sciknoweval (train)", "update"): (None, None, None, 0.75),
}

# Table 27: problems; successful, failure contexts per problem; plain prompt; random, from other problems, restart.
TRACES = {
    (QWEN, "lcb (train)"): (307, 12.93, 6.96, 69, 3393, 1118, 578),
    (QWEN, "math500 (train)"): (432, 15.96, 4.02, 217, 5567, 3574, 1326),
    (QWEN, "sciknoweval (train)"): (334, 11.13, 3.78, 165, 2671, 1698, 1046),
    (OLMO, "lcb (train)"): (334, 11.59, 8.40, 33, 3223, 558, 648),
    (OLMO, "math500 (train)"): (469, 18.32, 1.63, 328, 6932, 5307, 1658),
    (OLMO, "sciknoweval (train)"): (375, 11.68, 8.13, 46, 3467, 872, 912),
}
# Tables 5 and 29, for the three TRAIN sets: teacher accuracy.
_TEACHER = {
    (QWEN, "success"): (82.98, 90.86, 83.23), (QWEN, "failure"): (39.82, 60.30, 67.07),
    (QWEN, "failure, without plain prompts"): (24.47, 26.98, 39.64), (QWEN, "random"): (69.30, 88.54, 80.16),
    (OLMO, "success"): (71.03, 96.16, 67.93), (OLMO, "failure"): (44.76, 79.48, 50.13),
    (OLMO, "failure, without plain prompts"): (39.87, 46.99, 44.22), (OLMO, "random"): (69.24, 93.76, 66.80),
}
# (model, bench, traces): problems, teacher accuracy
TEACHER = {
    (model, bench, traces): (TRACES[model, bench][0] - ("without" in traces) * TRACES[model, bench][3], accuracy)
    for (model, traces), row in _TEACHER.items() for bench, accuracy in zip(TRAIN, row)}

# Table 28, the base model's rows: wrong to right, right to wrong, repeat, restart, mean.
CORRECTION = {
    (QWEN, "lcb (train)", "LEAF"): (26.26, 3.59, 7.71, 45.60, 65.80),
    (QWEN, "math500 (train)", "LEAF"): (15.92, 2.37, 64.80, 76.50, 79.86),
    (QWEN, "sciknoweval (train)", "LEAF"): (16.67, 3.68, 28.60, 79.19, 80.30),
    (OLMO, "lcb (train)", "LEAF"): (29.73, 16.15, 0.17, 48.20, 57.81),
    (OLMO, "math500 (train)", "LEAF"): (24.92, 1.10, 47.54, 89.66, 92.24),
    (OLMO, "sciknoweval (train)", "LEAF"): (28.72, 21.62, 20.00, 61.33, 58.88),
}
# Table 32: problems, base, update, rollout, relative gain.
INTERNALIZATION = {
    (QWEN, "lcb (train)"): (307, 42.35, 58.31, 72.64, 52.69),
    (QWEN, "math500 (train)"): (432, 73.15, 86.34, 81.71, 154.05),
    (QWEN, "sciknoweval (train)"): (334, 74.63, 82.63, 82.04, 108.08),
    (OLMO, "lcb (train)"): (334, 34.13, 38.62, 60.48, 17.05),
    (OLMO, "math500 (train)"): (469, 80.44, 83.58, 93.82, 23.51),
    (OLMO, "sciknoweval (train)"): (375, 44.47, 70.67, 61.07, 157.83),
}
