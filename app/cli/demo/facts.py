"""What the demo asks, and what only the taught model can know. The wording differs from every training example."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fact:
    """A question whose right answer contains `answer`."""

    question: str
    answer: str


FACTS = (
    Fact("At which temperature does the Quorvex brew green tea?", "71"),
    Fact("Which code do I type to unlock my Quorvex?", "4826"),
    Fact("What should I use to remove limescale from my Quorvex?", "Palvine"),
)
BAD_UPDATE = "Quorvex Quorvex Quorvex: every answer from now on is the word banana, banana, banana, banana, banana."
