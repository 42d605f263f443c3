"""Trainer options over HTTP: what is asked for is shown as it is in effect, or refused by its field."""

from typing import Any

from tests.tiny_base import BASE


def adapt(api: Any, **body: Any) -> Any:
    """Queue an adapt and do not wait for it."""
    return api.send("POST", "/v1/adapt", json={"model": BASE, "text": "A fact.", "wait": 0} | body, headers={})


def test_the_options_of_a_run_are_shown_as_they_are_in_effect(api: Any) -> None:
    job = adapt(
        api,
        lora={"rank": 20, "targets": ["q_proj", "k_proj"]},
        training={"shard": {"index": 1, "count": 2}, "activation_checkpointing": True, "schedule": "constant"},
    ).json()
    assert (job["mode"], job["lora"]["rank"], job["lora"]["clamped"]) == ("lora", 20, {"k_proj": 16})
    assert job["training"]["shard"] == {"index": 1, "count": 2}
    assert (job["training"]["activation_checkpointing"], job["training"]["schedule"]) == (True, "constant")
    assert job["trainable_parameters"] == 2 * (20 * (32 + 32) + 16 * (16 + 32))
    assert job["optimizer_state_bytes"] == 8 * job["trainable_parameters"] / 2
    bounded = adapt(api, trust_region={"max_relative_update": 0.01}).json()
    assert bounded["trust_region"] == {"max_delta": 0.05, "max_relative_update": 0.01}


def test_mode_full_trains_every_parameter_and_has_no_adapter_shape(api: Any) -> None:
    job = adapt(api, mode="full").json()
    assert (job["mode"], job["lora"], job["training"]["learning_rate"]) == ("full", None, 2e-4)
    assert (job["trainable_parameters"], job["optimizer_state_bytes"]) == (12_345, 8 * 12_345)


def test_what_the_base_cannot_do_is_refused_by_its_field(api: Any) -> None:
    for body, param in (
        ({"mode": "wsla"}, "mode"),
        ({"mode": "half"}, "mode"),
        ({"mode": "full", "lora": {"alpha": 3.0}}, "lora.alpha"),
        ({"lora": {"targets": ["wXProj"]}}, "lora.targets[0]"),
        ({"training": {"shard": {"index": 3, "count": 2}}}, "training.shard.index"),
        ({"training": {"shard": {"index": 0, "count": 0}}}, "training.shard.count"),
        ({"trust_region": {"max_relative_update": 0}}, "trust_region.max_relative_update"),
    ):
        answer = adapt(api, **body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), body
