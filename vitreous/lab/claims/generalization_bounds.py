"""PAC-Bayes, Rademacher and norm-based bounds on a trained ViT's error, compared with its measured error."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from math import log, sqrt

import torch
from torch import Tensor, nn

from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import exactly, mean_of
from vitreous.lab.instruments.run_evaluation import (
    batch_accuracy,
    initial_model,
    pooled_accuracy,
    training_batch,
    validation_batch,
)
from vitreous.lab.instruments.seeding import seeded
from vitreous.lab.prediction import AtLeast, AtMost, Near
from vitreous.lab.sweep import run_seeds
from vitreous.lab.trained import Trained, datasets, trained_run
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
    right="The bound is true, for the noisy model, a prior that is independent of the data and all but a share δ "
    "of training sets. Evaluated around the trained weights it is weaker than chance level: it is vacuous.",
    right_formula=r"KL = \frac{\| w - w_0 \|^2}{2 \sigma^2}",
    meaning="Do not choose or trust a model by such a bound: measure on held-out images, which is tight and cheap. "
    "Non-vacuous bounds need a posterior that is optimized for them, and strong compression.",
)
DELTA, CHANCE = 0.05, 0.9


def document(train_error: float, divergence: float, n: int) -> float:
    """The text's bound on the error of a model drawn from Q, with probability 1 − δ."""
    return train_error + sqrt((divergence + log(2 * n / DELTA)) / (2 * (n - 1)))


def right(distance: float, sigma: float) -> float:
    """KL(Q ‖ P) of two normal distributions with standard deviation σ and means ``distance`` apart."""
    return distance**2 / (2 * sigma**2)


def sampled_divergence(center: Tensor, prior: Tensor, sigma: float, seed: int) -> float:
    """Monte Carlo estimate of KL(Q ‖ P): mean of log Q(w) / P(w) over weights drawn from Q."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [center + sigma * torch.randn(center.shape, generator=generator) for _ in range(16)]
    ratios = [((w - prior).square() - (w - center).square()).double().sum() / (2 * sigma**2) for w in drawn]
    return float(torch.stack(ratios).mean())


def noisy_error(run: Trained, batch: Batch, sigma: float, draws: int) -> float:
    """Mean error of models with Gaussian noise added to the trained weights."""
    generator, errors = torch.Generator().manual_seed(0), []
    for _ in range(draws):
        model = copy.deepcopy(run.model)
        for each in model.parameters():
            each.data += sigma * torch.randn(each.shape, generator=generator)
        errors.append(1 - batch_accuracy(model, batch))
    return sum(errors) / draws


def images_of(run: Trained) -> int:
    """Number of distinct training images."""
    return min(len(datasets(run.run, run.recipe, run.trial)[0]), len(run.losses) * run.recipe.train.batch_size)


def flat(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def pac_bayes(run: Trained, sigmas: tuple[float, ...], number: int, draws: int) -> tuple[float, float, float]:
    """Return the best bound over the σ, the error it bounds, and sampled ÷ computed divergence at the smallest σ.

    Choosing among k values of σ after the fact costs log k, like k priors.
    """
    center, prior, seed = flat(run.model), flat(initial_model(run)), run.recipe.train.seed
    distance = float((center - prior).norm())
    train, n, choice = training_batch(run, number), images_of(run), log(len(sigmas))
    bounds = [document(noisy_error(run, train, each, draws), right(distance, each) + choice, n) for each in sigmas]
    best, sigma = min(zip(bounds, sigmas, strict=True))
    error = noisy_error(run, validation_batch(run, number), sigma, draws)
    return best, error, sampled_divergence(center, prior, sigmas[0], seed) / right(distance, sigmas[0])


def rademacher(run: Trained, number: int, steps: int) -> float:
    """Correlation with random signs that training an untrained model reaches: a lower bound on the supremum."""
    draws = torch.Generator().manual_seed(run.recipe.train.seed)
    signs = torch.randint(0, 2, (number,), generator=draws) * 2.0 - 1
    images, model = training_batch(run, number).images, initial_model(run)
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
    """Π ‖W‖ ‖x‖ / √n, the leading factor of spectral-norm bounds, with margin 1, ignoring norms and softmax."""
    model = run.model
    assert isinstance(model, ViT)
    factor = norm(model.stem) * norm(model.head)
    for block in model.blocks:
        assert isinstance(block, Block)
        factor *= (1 + norm(block.mixer)) * (1 + norm(block.mlp))
    length = float(validation_batch(run, number).images.flatten(1).norm(dim=1).mean())
    return factor * length / sqrt(images_of(run))


def norm(part: nn.Module) -> float:
    """Product of the spectral norms of a module's matrices."""
    matrices = [each for each in part.parameters() if each.ndim > 1]
    return float(torch.stack([torch.linalg.matrix_norm(each.detach().flatten(1), ord=2) for each in matrices]).prod())


def cases(trial: Trial) -> Iterator[Case]:
    number, draws = trial.choose((200, 2), (300, 3))
    runs = [trained_run(trial, "base", seed) for seed in run_seeds(trial, "base")]
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
    yield Case("PAC-Bayes: bound on the error (chance: 0.9)", mean_of(bound), document=AtMost(CHANCE))
    for n, steps in trial.choose(((32, 60),), ((32, 60), (96, 100))):
        spare = sqrt(log(1 / DELTA) / (2 * n))
        found = mean_of([rademacher(run, n, steps) + spare for run in runs])
        yield Case(f"Rademacher: bound on the error of {n} images", found, document=AtMost(CHANCE))
    factor = mean_of([spectral_factor(run, number) for run in runs])
    yield Case("spectral norms: leading factor of the bound", factor, document=AtMost(CHANCE))
