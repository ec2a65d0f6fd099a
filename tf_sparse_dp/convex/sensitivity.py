r"""How far regularised solutions move, and how much to regularise.

Notation: $L$ the Lipschitz constant of one row's loss, $\beta$ its smoothness,
$s$ the number of entries of a row that are not zero, $d$ of a vector, $n$ rows,
$D$ the distance of the initial point from a minimiser, $\gamma$ the probability
that accuracy may be worse than it should (the paper's β).
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

from scipy import optimize

Objective: TypeAlias = Literal["erm", "sco"]


def l2_sensitivity(
    *, lipschitz: float, regularization: float, num_rows: int
) -> float:
    r"""How far the minimiser moves when one row is replaced: $2L/\lambda n$.

    Let $x, x'$ minimise $F_S + \frac\lambda2\|\cdot - x^0\|^2$ and the same for
    $S'$ over a convex set. Optimality of each, tested with the other, adds up
    to $\langle \nabla F_S(x) + \lambda x - \nabla F_{S'}(x') - \lambda x', x' -
    x \rangle \ge 0$. Gradients of the convex $F_S$ are monotone, so $\lambda
    \|x - x'\|^2 \le \langle \nabla F_S(x') - \nabla F_{S'}(x'), x' - x \rangle
    \le \frac{2L}n \|x - x'\|$. $L$ is needed on the set only.

    Reference: Bousquet and Elisseeff, "Stability and Generalization" (2002);
    Chaudhuri, Monteleoni and Sarwate, "Differentially Private Empirical Risk
    Minimization" (2011).
    """
    return 2 * lipschitz / (regularization * num_rows)


def l1_sensitivity(
    *,
    lipschitz: float,
    smoothness: float,
    regularization: float,
    num_rows: int,
    sparsity: int,
    support: int,
) -> float:
    r"""The same in L1 norm, for smooth losses without constraints.

    .. math:: \|x - x'\|_1 \le \frac{\sqrt s L}{\lambda n}
      \Bigl(2 + \sqrt{\beta/\lambda}\Bigr)

    Without constraints $\lambda(x - x^0) = -\nabla F_S(x)$. With $v = x - x'$,
    $\Delta_i = \nabla f_i(x) - \nabla f_i(x')$ for the rows that both have and
    $g, g'$ the gradients of the one that differs, at $x$ and at $x'$:
    $\lambda v = -\frac1n \sum_i \Delta_i - \frac1n (g - g')$. As $\langle
    \Delta_i, v \rangle \ge \|\Delta_i\|_2^2 / \beta$ (convex and smooth) and
    $\Delta_i$ lives on the $s$ entries of row $i$,

    - $Q = \frac1n \sum \langle \Delta_i, v \rangle \le \frac{2L}n \|v\| -
      \lambda \|v\|^2 \le L^2 / (\lambda n^2)$;
    - $\frac1n \sum \|\Delta_i\|_1 \le \frac1n \sum \sqrt{s \beta \langle
      \Delta_i, v \rangle} \le \sqrt{s \beta Q}$ (Jensen);
    - $\frac1n \|g - g'\|_1 \le 2 \sqrt s L / n$,

    and $\lambda \|v\|_1$ is at most the sum of the last two. The paper's own
    bound has $2\beta/\lambda$ where this has $\sqrt{\beta/\lambda}$; with λ
    chosen for it, an excess risk of order $n^{-1/3}$ becomes one of order
    $n^{-2/5}$. Both need smoothness, and gradients that are all there is to
    optimality: at a boundary $x$ may move in all $d$ entries.

    Never more than the square root of `support` times the L2 sensitivity.

    Args:
      support: How many entries can differ at all.
    """
    unit = lipschitz / (regularization * num_rows)
    smooth = math.sqrt(sparsity) * unit
    smooth *= 2 + math.sqrt(smoothness / regularization)
    return min(smooth, 2 * unit * math.sqrt(support))


def theorem_regularization(
    *,
    objective: Objective,
    epsilon: float,
    delta: float,
    lipschitz: float,
    smoothness: float,
    distance: float,
    num_rows: int,
    num_columns: int,
    sparsity: int,
    failure_probability: float,
) -> float:
    r"""λ as the paper's theorems print it.

    - $\delta = 0$, both objectives: $\bigl( \frac{L^2\beta}{D^2} \frac{s
      \ln(d/\gamma)}{\epsilon n} \bigr)^{1/3}$;
    - empirical risk: $\frac LD \frac{[s \ln(1/\delta)
      \ln(d/\gamma)]^{1/4}}{\sqrt{\epsilon n}}$;
    - population risk: $\frac LD \bigl(\frac{\ln n \ln(1/\gamma)}n +
      \frac{\sqrt{s \ln(1/\delta) \ln(d/\gamma)}}{\epsilon n} \bigr)^{1/2}$.

    Reference: Ghazi, Guzmán, Kamath, Kumar and Manurangsi, "Differentially
    Private Optimization with Sparse Gradients" (2024), section 6.
    """
    columns = math.log(max(num_columns, 2) / failure_probability)
    if delta == 0:
        cube = lipschitz**2 * smoothness / distance**2
        cube *= sparsity * columns / (epsilon * num_rows)
        return cube ** (1 / 3)
    noise = math.sqrt(sparsity * math.log(1 / delta) * columns) / epsilon
    if objective == "sco":
        noise += math.log(num_rows) * math.log(1 / failure_probability)
    return lipschitz / distance * math.sqrt(noise / num_rows)


def bound_regularization(
    *,
    objective: Objective,
    noise_multiplier: float,
    pure: bool,
    constrained: bool,
    lipschitz: float,
    smoothness: float,
    distance: float,
    num_rows: int,
    num_columns: int,
    sparsity: int,
    failure_probability: float,
) -> float:
    r"""λ that makes the theorems' bound least, with its constants.

    With probability $1 - \gamma$ the empirical excess risk is at most
    $\frac\lambda2 D^2 + c \sqrt s L \|\xi\|_\infty$, where $c$ is 2 with
    constraints and 1 without: $\langle \nabla F_S(\hat x), \hat x - x
    \rangle \le \|\nabla F_S(\hat x)\|_1 \|\hat x - x\|_\infty$, and a row's
    gradient has $s$ entries. $\|\xi\|_\infty$ is at most $\sigma \sqrt{2
    \ln(2d/\gamma)}$ (Gaussian) or $b \ln(d/\gamma)$ (Laplace), and the noise
    is the one that is used, from the sensitivities above. For the population
    risk the expected gap between the two is added: $2L^2/\lambda n$.
    """
    columns = max(num_columns, 2) / failure_probability
    tail = math.log(columns)
    if not pure:
        tail = math.sqrt(2 * math.log(2 * columns))

    def log_bound(log_regularization: float) -> float:
        regularization = math.exp(log_regularization)
        if pure:
            moved = l1_sensitivity(
                lipschitz=lipschitz,
                smoothness=smoothness,
                regularization=regularization,
                num_rows=num_rows,
                sparsity=sparsity,
                support=num_columns,
            )
        else:
            moved = l2_sensitivity(
                lipschitz=lipschitz,
                regularization=regularization,
                num_rows=num_rows,
            )
        risk = math.sqrt(sparsity) * lipschitz * moved * noise_multiplier * tail
        risk *= 2 if constrained else 1
        if objective == "sco":
            risk += 2 * lipschitz**2 / (regularization * num_rows)
        return math.log(regularization * distance**2 / 2 + risk)

    scale = math.log(lipschitz / distance)
    result = optimize.minimize_scalar(
        log_bound, bounds=(scale - 40, scale + 40), method="bounded"
    )
    return math.exp(float(result.x))
