"""Bounds on a trained ViT's error, from PAC-Bayes, Rademacher complexity and norms, beside its error."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from math import log, sqrt

import torch
from torch import Tensor, nn

from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import exactly, mean_of
from vitreous.lab.instruments.chance import seeded
from vitreous.lab.instruments.examined import initial, learned, pooled_accuracy, share_right, unseen
from vitreous.lab.prediction import AtLeast, AtMost, Near
from vitreous.lab.sweep import seeds
from vitreous.lab.trained import Trained, datasets, trained
from vitreous.lab.trial import Trial
from vitreous.layers.block import Block
from vitreous.models.vit import ViT
from vitreous.samples import Batch

CLAIM = Claim(
    title="Bounds on generalization",
    statement="The error of a ViT on unseen images is bounded by its training error and a term with the divergence "
    "of posterior and prior (PAC-Bayes). The Rademacher complexity of its class, how well it can follow random signs, "
    "says the same in another way.",
    sources=(Source.FOUNDATIONS,),
    formula=r"E[L] \leq \hat{L} + \sqrt{\frac{KL(Q \| P) + \log(2n/\delta)}{2(n-1)}}, \quad "
    r"R = E_\sigma \sup_f \frac{1}{n} \sum_i \sigma_i f(x_i)",
    right="The bound is true, for the noisy model, a prior that has not seen the data and all but a share δ of "
    "training sets. Evaluated around the trained weights it promises less than guessing does: it is vacuous.",
    right_formula=r"KL = \frac{\| w - w_0 \|^2}{2 \sigma^2}",
    meaning="Do not choose or trust a model by such a bound: hold images out and measure, which is tight and cheap. "
    "Bounds that say something need a posterior that is optimized for them, and strong compression.",
)
DELTA, GUESSING = 0.05, 0.9


def document(train_error: float, divergence: float, n: int) -> float:
    """The text's bound on the error of a model drawn from Q, with probability 1 − δ."""
    return train_error + sqrt((divergence + log(2 * n / DELTA)) / (2 * (n - 1)))


def right(distance: float, sigma: float) -> float:
    """KL(Q ‖ P) of two normal distributions of one width σ around weights that lie so far apart."""
    return distance**2 / (2 * sigma**2)


def sampled_divergence(center: Tensor, prior: Tensor, sigma: float, seed: int) -> float:
    """The same by its meaning: the mean of log Q(w) / P(w) over weights drawn from Q."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [center + sigma * torch.randn(center.shape, generator=generator) for _ in range(16)]
    ratios = [((w - prior).square() - (w - center).square()).double().sum() / (2 * sigma**2) for w in drawn]
    return float(torch.stack(ratios).mean())


def noisy_error(run: Trained, batch: Batch, sigma: float, draws: int) -> float:
    """The mean error of models drawn around the trained one."""
    generator, wrong = torch.Generator().manual_seed(0), []
    for _ in range(draws):
        model = copy.deepcopy(run.model)
        for each in model.parameters():
            each.data += sigma * torch.randn(each.shape, generator=generator)
        wrong.append(1 - share_right(model, batch))
    return sum(wrong) / draws


def images_of(run: Trained) -> int:
    """How many different images it was trained on."""
    return min(len(datasets(run.run, run.recipe, run.trial)[0]), len(run.losses) * run.recipe.train.batch_size)


def flat(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def pac_bayes(run: Trained, sigmas: tuple[float, ...], number: int, draws: int) -> tuple[float, float, float]:
    """The best bound over the widths, the error that it bounds, and sampled / computed divergence at the least width.

    Choosing among k widths after the fact costs log k, like k priors.
    """
    center, prior, seed = flat(run.model), flat(initial(run)), run.recipe.train.seed
    distance = float((center - prior).norm())
    train, n, choice = learned(run, number), images_of(run), log(len(sigmas))
    bounds = [document(noisy_error(run, train, each, draws), right(distance, each) + choice, n) for each in sigmas]
    best, sigma = min(zip(bounds, sigmas, strict=True))
    error = noisy_error(run, unseen(run, number), sigma, draws)
    return best, error, sampled_divergence(center, prior, sigmas[0], seed) / right(distance, sigmas[0])


def rademacher(run: Trained, number: int, steps: int) -> float:
    """How far a fresh model of the same kind can be brought to follow random signs: at least this is the supremum."""
    draws = torch.Generator().manual_seed(run.recipe.train.seed)
    signs = torch.randint(0, 2, (number,), generator=draws) * 2.0 - 1
    images, model = learned(run, number).images, initial(run)
    with seeded(run.recipe.train.seed):
        model.reset_head(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=run.recipe.train.optimizer.lr)
    for _ in range(steps):
        loss = nn.functional.softplus(-signs * model(images)[:, 0]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return float((signs * model(images)[:, 0].tanh()).mean())


def spectral_factor(run: Trained, number: int) -> float:
    """Π ‖W‖ ‖x‖ / √n, the leading factor of bounds by spectral norms, with margin 1 and norms and softmax for free."""
    model = run.model
    assert isinstance(model, ViT)
    factor = norm(model.stem) * norm(model.head)
    for block in model.blocks:
        assert isinstance(block, Block)
        factor *= (1 + norm(block.mixer)) * (1 + norm(block.mlp))
    length = float(unseen(run, number).images.flatten(1).norm(dim=1).mean())
    return factor * length / sqrt(images_of(run))


def norm(part: nn.Module) -> float:
    """The product of its matrices' spectral norms."""
    matrices = [each for each in part.parameters() if each.ndim > 1]
    return float(torch.stack([torch.linalg.matrix_norm(each.detach().flatten(1), ord=2) for each in matrices]).prod())


def cases(trial: Trial) -> Iterator[Case]:
    number, draws = trial.choose((200, 2), (300, 3))
    runs = [trained(trial, "base", seed) for seed in seeds(trial, "base")]
    sigmas = trial.choose((0.01, 0.1, 1.0), (0.01, 0.03, 0.1, 0.3, 1.0))
    bound, error, ratio = zip(*(pac_bayes(run, sigmas, number, draws) for run in runs), strict=True)
    yield Case("accuracy on unseen images", pooled_accuracy(runs, number), right=AtLeast(0.2))
    yield Case("divergence, sampled / computed", exactly(sum(ratio) / len(ratio)), right=Near(1.0, 0.1))
    slack = [a - b for a, b in zip(bound, error, strict=True)]
    yield Case(
        "PAC-Bayes: bound less the error that it bounds", mean_of(slack), document=AtLeast(0.0), right=AtLeast(0.0)
    )
    gap = mean_of([run.train_accuracy - run.accuracy for run in runs])
    yield Case("measured: training accuracy less accuracy on unseen images", gap, right=AtMost(0.3))
    yield Case("PAC-Bayes: bound on the error (guessing: 0.9)", mean_of(bound), document=AtMost(GUESSING))
    for n, steps in trial.choose(((32, 60),), ((32, 60), (96, 100))):
        spare = sqrt(log(1 / DELTA) / (2 * n))
        found = mean_of([rademacher(run, n, steps) + spare for run in runs])
        yield Case(f"Rademacher: bound on the error of {n} images", found, document=AtMost(GUESSING))
    factor = mean_of([spectral_factor(run, number) for run in runs])
    yield Case("spectral norms: leading factor of the bound", factor, document=AtMost(GUESSING))
