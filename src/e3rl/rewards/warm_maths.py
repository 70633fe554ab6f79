"""Loading this compares some answers, so that processes forked afterwards find the caches filled.

A parser of LaTeX that has seen nothing takes a tenth of a second for its first brackets.
"""

from e3rl.rewards.verifier import compare_answers

COMPARED = (
    (r"\frac{1}{2}", "0.5"),
    (r"\sqrt{2}+1", r"1+\sqrt{2}"),
    (r"\left(1, \frac{3}{4}\right]", "(1, 2]"),
    (r"\{1, 2\}", "1, 2"),
    (r"y = 2x^{2}+5", r"\sin\left(\frac{\pi}{3}\right)+\ln(2)"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"2^{10}\pi"),
    (r"x > 2", r"(2, \infty)"),
)
for _gold, _answer in COMPARED:
    compare_answers(_gold, _answer)
