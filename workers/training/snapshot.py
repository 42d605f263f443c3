"""A run's state as bytes and back: safetensors for weights and moments, a JSON manifest for all else.

The manifest carries a format version, the SHA-256 of the tensors and of itself, and the id of the run (a digest of
configuration, data and start weights), so that a torn, altered or foreign snapshot is refused and never half loaded.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from workers.training.adamw import Moments
from workers.training.errors import SnapshotError
from workers.training.state import GoodState, Progress, RunState

FORMAT = "graft-training-snapshot"
FORMAT_VERSION = 1
GOOD = "good."
"""Before the names of the tensors to go back to when the present ones go bad."""


@dataclass(frozen=True)
class Snapshot:
    """State after optimizer step `step`. `manifest` is a JSON object."""

    step: int
    tensors: bytes
    manifest: dict[str, object]


def manifest_sha256(manifest: Mapping[str, object]) -> str:
    """Return the digest of a manifest, its own digest left out."""
    body = {key: value for key, value in manifest.items() if key != "manifest_sha256"}
    return hashlib.sha256(json.dumps(body, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _named(prefix: str, weights: Mapping[str, Tensor], moments: Mapping[str, Moments]) -> dict[str, Tensor]:
    tensors = {f"{prefix}weight.{name}": weight for name, weight in weights.items()}
    for name, held in moments.items():
        tensors |= {
            f"{prefix}m.{name}": held.m,
            f"{prefix}v.{name}": held.v,
            f"{prefix}t.{name}": torch.tensor(held.step),
        }
    return tensors


def encode(state: RunState, run_id: str) -> Snapshot:
    """Return the state as a snapshot; the tensors are copied."""
    tensors = _named("", state.weights, state.moments) | _named(GOOD, state.good.weights, state.good.moments)
    data = save({key: tensor.detach().to("cpu", copy=True).contiguous() for key, tensor in tensors.items()})
    manifest: dict[str, object] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "run_id": run_id,
        "tensors_sha256": hashlib.sha256(data).hexdigest(),
        "progress": state.progress.model_dump(),
    }
    manifest["manifest_sha256"] = manifest_sha256(manifest)
    return Snapshot(state.progress.step, data, manifest)


def _check_manifest(snapshot: Snapshot, run_id: str) -> Progress:
    manifest = snapshot.manifest
    if manifest.get("format") != FORMAT or manifest.get("format_version") != FORMAT_VERSION:
        found = f"{manifest.get('format')} version {manifest.get('format_version')}"
        raise SnapshotError(f"snapshot is {found}, expected {FORMAT} version {FORMAT_VERSION}")
    if manifest.get("manifest_sha256") != manifest_sha256(manifest):
        raise SnapshotError("snapshot manifest does not match its SHA-256")
    if manifest.get("tensors_sha256") != hashlib.sha256(snapshot.tensors).hexdigest():
        raise SnapshotError("snapshot tensors do not match their SHA-256")
    if manifest.get("run_id") != run_id:
        raise SnapshotError("snapshot belongs to a run with another configuration, data or start")
    try:
        progress = Progress.model_validate(manifest.get("progress"))
    except ValidationError as error:
        raise SnapshotError(f"snapshot progress: {error}") from error
    if progress.step != snapshot.step:
        raise SnapshotError(f"snapshot is named step {snapshot.step} but holds step {progress.step}")
    return progress


def _take(tensors: dict[str, Tensor], key: str, like: Tensor) -> Tensor:
    tensor = tensors.pop(key, None)
    if tensor is None:
        raise SnapshotError(f"snapshot lacks tensor {key}")
    if tensor.shape != like.shape or tensor.dtype != like.dtype:
        raise SnapshotError(
            f"snapshot tensor {key} is {tensor.dtype} {list(tensor.shape)}, expected {like.dtype} {list(like.shape)}"
        )
    return tensor.to(like.device)


def _take_all(
    tensors: dict[str, Tensor], prefix: str, parameters: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Moments]]:
    weights = {name: _take(tensors, f"{prefix}weight.{name}", p) for name, p in parameters.items()}
    moments = {}
    for name, parameter in parameters.items():
        if f"{prefix}t.{name}" in tensors:
            step = int(tensors.pop(f"{prefix}t.{name}"))
            m, v = (_take(tensors, f"{prefix}{letter}.{name}", parameter) for letter in "mv")
            moments[name] = Moments(m, v, step)
    return weights, moments


def decode(snapshot: Snapshot, run_id: str, parameters: Mapping[str, Tensor]) -> RunState:
    """Return the state, its tensors where `parameters` are. Raises SnapshotError for any mismatch."""
    progress = _check_manifest(snapshot, run_id)
    try:
        tensors = load(snapshot.tensors)
    except SafetensorError as error:
        raise SnapshotError(f"snapshot tensors: {error}") from error
    weights, moments = _take_all(tensors, "", parameters)
    good = GoodState(*_take_all(tensors, GOOD, parameters))
    if tensors:
        raise SnapshotError(f"snapshot holds unknown tensor {min(tensors)}")
    return RunState(weights, moments, good, progress)
