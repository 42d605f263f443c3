"""The story of `graft demo`: ask, teach, ask again, then try a bad update and see it rolled back."""

from pathlib import Path
from typing import Annotated

import httpx
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.cli.demo import client as rest
from app.cli.demo.facts import BAD_UPDATE, FACTS
from app.cli.demo.progress import follow
from app.cli.demo.server import create_tenant, running_server
from app.cli.errors import CliError

EXAMPLES = Path(__file__).parents[3] / "examples"
ADAPTER = "quorvex-support"


def demo(
    examples: Annotated[Path, typer.Option(help="Folder with support_chats*.jsonl.")] = EXAMPLES,
) -> None:
    """Teach a real model three facts over REST, and see a bad update rolled back. Takes a few minutes on two cores."""
    training, validation = examples / "support_chats.jsonl", examples / "support_chats_validation.jsonl"
    for path in (training, validation):
        if not path.exists():
            raise CliError(f"no {path}: run from a checkout, or name the folder with --examples")
    console = Console(highlight=False)
    console.print("[bold]1. Starting[/] SQLite, Valkey, the API and one worker in a temporary directory …")
    with running_server() as deployment:
        console.print(f"   ready at {deployment.url}")
        with rest.connect(deployment.url, create_tenant(deployment, "demo")) as client:
            failures = _story(console, client, training, validation)
    if failures:
        raise CliError("the demo failed: " + "; ".join(failures))
    _how_to_go_on(console)


def _story(console: Console, client: httpx.Client, training: Path, validation: Path) -> list[str]:
    """Run the demo against a ready server and return what did not come out as promised."""
    base = rest.base_model(client)
    console.print(f"[bold]2. Asking[/] {base} about a product it cannot know …")
    before = [rest.ask(client, base, fact.question) for fact in FACTS]

    console.print(f"[bold]3. Fine-tuning[/] a LoRA adapter on {training.name} …")
    body = {
        "model": base,
        "training_file": rest.upload(client, training),
        "validation_file": rest.upload(client, validation),
        "adapter": ADAPTER,
        "seed": 7,
    }
    job = follow(console, client, rest.create_job(client, body)["id"])
    model = str(job["fine_tuned_model"])
    console.print(f"   published as {model}")
    after = [rest.ask(client, model, fact.question) for fact in FACTS]
    console.print(_side_by_side(before, after))

    console.print("[bold]4. A bad update[/]: learning rate far too high, trust region off …")
    version = rest.active_version(client, ADAPTER)
    bad = {
        "model": ADAPTER,
        "text": BAD_UPDATE,
        "training": {"learning_rate": 1.0},
        "trust_region": {"max_delta": 0},
    }
    outcome = rest.adapt(client, bad)
    console.print(f"   rolled back: {outcome['rolled_back']}  ({outcome['rollback_reason']})", markup=False)
    again = [rest.ask(client, ADAPTER, fact.question) for fact in FACTS]
    unchanged = again == after and rest.active_version(client, ADAPTER) == version
    console.print(
        f"   {ADAPTER} is still at version {version}; its answers are {'the same' if unchanged else 'CHANGED'}"
    )
    return _failures(before, after, rolled_back=bool(outcome["rolled_back"]), unchanged=unchanged)


def _failures(before: list[str], after: list[str], *, rolled_back: bool, unchanged: bool) -> list[str]:
    failures = []
    for fact, old, new in zip(FACTS, before, after, strict=True):
        failures += [f"the base model knew {fact.answer!r}"] if fact.answer in old else []
        failures += [] if fact.answer in new else [f"the tuned model did not say {fact.answer!r}"]
    failures += [] if rolled_back else ["the bad update was not rolled back"]
    return failures + ([] if unchanged else ["the bad update changed answers or version"])


def _side_by_side(before: list[str], after: list[str]) -> Table:
    table = Table("question", "before", "after", show_lines=True, expand=True)
    for fact, old, new in zip(FACTS, before, after, strict=True):
        table.add_row(fact.question, Text(old, style="dim"), Text(new, style="green"))
    return table


def _how_to_go_on(console: Console) -> None:
    console.print(
        """[bold]It works.[/] To go on:
   make serve                                               the same server, on http://127.0.0.1:8000
   GRAFT_DATA_DIR=data .venv/bin/graft tenants create me    a tenant and its API key, in another terminal
   curl http://127.0.0.1:8000/v1/models -H "Authorization: Bearer $GRAFT_API_KEY"
   python: OpenAI(base_url="http://127.0.0.1:8000/v1", api_key=...).chat.completions.create(...)
   README.md goes on from here.""",
        markup=True,
    )
