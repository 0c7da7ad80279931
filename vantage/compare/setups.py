"""What an experiment at a scale that one can afford leaves out of a paper's set-up, in words."""

from __future__ import annotations

from vantage.compare.equal import hidden_of, parameters
from vantage.compare.experiment import Experiment
from vantage.compare.names import paper_name
from vantage.compare.paper_setups import setup_of, setups
from vantage.compare.published import paper


def reductions(experiment: Experiment) -> list[str]:
    """How an experiment differs from the set-up of each paper that it is set beside."""
    sentences: list[str] = []
    for name in experiment.published:
        if paper_name(name) not in setups():
            continue
        _, setup = setup_of(name)
        ours = _ours(experiment)
        differs = [
            f"{what} {ours[what]} (theirs: {_format(value)})"
            for what, value in setup.theirs.items()
            if ours[what] != _format(value)
        ]
        if differs:
            sentences.append(f"Beside {paper(name).source}, this is another size: {', '.join(differs)}.")
        sentences += [f"{sentence}." for sentence in setup.besides]
    return sentences


def _ours(experiment: Experiment) -> dict[str, str]:
    entry = next(experiment.entries())
    values = {
        "width": experiment.shape.width,
        "layers": experiment.shape.layers,
        "heads": experiment.shape.heads,
        "steps": experiment.steps,
        "batch": experiment.batch,
        "training length": experiment.train_length,
        "longest test": max(experiment.test_lengths),
        "seeds": experiment.seeds,
        "test examples": experiment.test_examples,
        "text": ", ".join(experiment.text),
        "parameters": parameters(experiment.section(*entry), experiment.vocab(entry[0])),
    }
    return {name: _format(value) for name, value in values.items()}


def _format(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def notes(experiment: Experiment) -> list[str]:
    """What the page says of how the models were made comparable, and of what a paper's set-up was cut to."""
    sentences = reductions(experiment)
    if experiment.text:
        sentences.append(
            f"Text ({', '.join(experiment.text)}, {experiment.vocabulary}): trained on windows of "
            f"{experiment.train_length} tokens, and the last tenth is read. “text” cuts it into windows that do not "
            f"overlap; “text, sliding” moves the window by {experiment.reading(0).stride} tokens and scores the new "
            f"ones; “text, over position” is by where a token stands in the longest window."
        )
    if experiment.equal == "parameters":
        sentences += [_equality(experiment, name) for name in experiment.tasks]
    return sentences


def _equality(experiment: Experiment, name: str) -> str:
    """Which feed-forward widths made the counts of a task equal."""
    vocab, widths, counts = experiment.vocab(name), [], []
    for task, position, attention in experiment.entries():
        if task == name:
            section = experiment.section(name, position, attention)
            label = position if attention == "multi-head" else f"{position}, {attention}"
            widths.append(f"{label} {hidden_of(section)}")
            counts.append(parameters(section, vocab))
    apart = (max(counts) - min(counts)) / max(counts)
    return (
        f"Equal parameters in {name}: {min(counts):,} to {max(counts):,}, {apart:.2%} apart, by the width of the "
        f"feed-forward layers ({'; '.join(widths)}). Compute is then not equal; it is listed."
    )
