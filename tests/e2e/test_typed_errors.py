"""What the official client raises: the right class, and a message that names the line or the field."""

from pathlib import Path

import openai
import pytest
from openai import OpenAI
from openai.types.fine_tuning import FineTuningJob

from tests.e2e.conftest import ADAPTER, BASE, Server

HELLO = [{"role": "user", "content": "Hello"}]
GOOD = '{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}\n'


@pytest.fixture(scope="module")
def stranger(server: Server) -> OpenAI:
    """Return another tenant's client."""
    return server.openai(server.new_tenant("stranger"))


def test_everything_of_another_tenant_is_not_found(stranger: OpenAI, taught: FineTuningJob, training_file: str) -> None:
    for call in (
        lambda: stranger.files.retrieve(training_file),
        lambda: stranger.files.content(training_file),
        lambda: stranger.files.delete(training_file),
        lambda: stranger.fine_tuning.jobs.retrieve(taught.id),
        lambda: stranger.fine_tuning.jobs.cancel(taught.id),
        lambda: stranger.fine_tuning.jobs.list_events(taught.id),
        lambda: stranger.fine_tuning.jobs.checkpoints.list(taught.id),
        lambda: stranger.fine_tuning.jobs.create(model=BASE, training_file=training_file),
        lambda: stranger.chat.completions.create(model=str(taught.fine_tuned_model), messages=HELLO, max_tokens=1),
        lambda: stranger.chat.completions.create(model=ADAPTER, messages=HELLO, max_tokens=1),
        lambda: stranger.models.retrieve(str(taught.fine_tuned_model)),
    ):
        with pytest.raises(openai.NotFoundError):
            call()
    assert list(stranger.files.list()) == []
    assert list(stranger.fine_tuning.jobs.list()) == []


def test_broken_line_is_named_and_nothing_is_stored(client: OpenAI, tmp_path: Path) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text(GOOD * 6 + '{"messages": [\n')
    before = [file.id for file in client.files.list()]
    with pytest.raises(openai.BadRequestError, match="line 7") as caught:
        client.files.create(file=path, purpose="fine-tune")
    assert caught.value.param == "line 7"
    assert [file.id for file in client.files.list()] == before


def test_unknown_field_is_named(client: OpenAI, training_file: str) -> None:
    with pytest.raises(openai.BadRequestError, match="lorra") as caught:
        client.fine_tuning.jobs.create(model=BASE, training_file=training_file, extra_body={"lorra": {}})
    assert caught.value.param == "lorra"


@pytest.mark.parametrize("rank", [0, 4096])
def test_impossible_rank_is_refused(client: OpenAI, training_file: str, rank: int) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.fine_tuning.jobs.create(model=BASE, training_file=training_file, extra_body={"lora": {"rank": rank}})
    assert caught.value.param == "lora.rank"


def test_too_long_a_prompt_is_a_bad_request(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=BASE, prompt="tea " * 9000, max_tokens=1)
    assert caught.value.code == "context_length_exceeded"


def test_unknown_model_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="no-such-model", messages=HELLO)
    assert caught.value.param == "model"


def test_wrong_key_is_an_authentication_error(server: Server) -> None:
    with pytest.raises(openai.AuthenticationError):
        server.openai("tml-wrong").models.list()


def test_revoked_key_stops_working_at_once(server: Server) -> None:
    key = server.new_tenant("short-lived")
    client = server.openai(key)
    assert client.models.list().data
    key_id = server.graft("keys", "list", "short-lived").stdout.split()[0]
    assert server.graft("keys", "revoke", "short-lived", key_id).returncode == 0
    with pytest.raises(openai.AuthenticationError):
        client.models.list()
