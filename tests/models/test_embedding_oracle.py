"""Embeddings equal mean pooling over transformers' last hidden state."""

from pathlib import Path

import torch
from torch.nn.functional import normalize
from transformers import AutoModel

from tests.models.conftest import load_small
from tests.tiny_model import save_tiny_model
from workers.models.pooling import embeddings_by_window

SEQUENCES = [[1, 5, 9], [(11 * i) % 96 for i in range(40)], [7]]


def test_embeddings_equal_mean_pooling(tmp_path: Path) -> None:
    directory = save_tiny_model(tmp_path / "tiny")
    theirs = AutoModel.from_pretrained(directory, dtype=torch.float32).eval()
    ours = dict(
        pair for ended in embeddings_by_window(load_small(directory).model, SEQUENCES, -1, 16) for pair in ended
    )
    assert sorted(ours) == [0, 1, 2]
    for number, ids in enumerate(SEQUENCES):
        with torch.no_grad():
            hidden = theirs(torch.tensor([ids])).last_hidden_state[0]
        assert (ours[number] - normalize(hidden.mean(0), dim=0)).abs().max() < 1e-5
