"""The unmodified RestClient against the rehearsal: runs, checkpoints, sessions, capabilities."""

from __future__ import annotations

import pytest
import tinker
from sdk_calls import unique
from tinker import types


def test_runs_and_checkpoints_are_listed_and_managed(rehearsal, service, training) -> None:
    rest = rehearsal.rest()
    name = unique("m")
    path = training.save_state(name, user_metadata={"step": "1"}).result().path
    run_id = training.model_id
    assert rest.get_training_run(run_id).result().last_checkpoint.tinker_path == path
    assert rest.get_training_run_by_tinker_path(path).result().training_run_id == run_id
    runs = rest.list_training_runs(limit=100).result()
    assert run_id in [run.training_run_id for run in runs.training_runs]
    assert runs.cursor.total_count >= 1

    def listed():
        checkpoints = rest.list_checkpoints(run_id).result().checkpoints
        return {checkpoint.tinker_path: checkpoint for checkpoint in checkpoints}

    assert listed()[path].user_metadata == {"step": "1"}
    assert listed()[path].checkpoint_type == "training"
    assert listed()[path].size_bytes > 0
    rest.publish_checkpoint_from_tinker_path(path).result()
    assert listed()[path].public
    rest.unpublish_checkpoint_from_tinker_path(path).result()
    assert not listed()[path].public
    rest.set_checkpoint_ttl_from_tinker_path(path, 3600).result()
    assert listed()[path].expires_at is not None
    rest.set_checkpoint_ttl_from_tinker_path(path, None).result()
    assert listed()[path].expires_at is None
    info = rest.get_weights_info_by_tinker_path(path).result()
    assert (info.base_model, info.lora_rank, info.train_mlp) == (rehearsal.model, 4, True)
    everything = rest.list_user_checkpoints(limit=1000).result().checkpoints
    assert path in [checkpoint.tinker_path for checkpoint in everything]
    copy = rest.copy_weights(path, destination_project_id="p").result()
    assert copy != path
    again = service.create_training_client_from_state_with_optimizer(copy).result()
    assert again.get_info().lora_rank == 4
    rest.delete_checkpoint_from_tinker_path(path).result()
    assert path not in listed()
    # A deleted name is free again, and can be replaced when the user says so.
    training.save_state(name).result()
    training.save_state(name, overwrite=True).result()
    rest.delete_checkpoint(run_id, f"weights/{name}").result()


def test_sessions_are_listed_searched_and_closed(rehearsal) -> None:
    rest = rehearsal.rest()
    label = unique("label")
    client = tinker.ServiceClient(
        {"purpose": label}, display_name=label, base_url=rehearsal.base_url, api_key="tml-x"
    )
    training = client.create_lora_training_client(rehearsal.model, rank=2).result()
    session_id = training.model_id.split(":train:")[0]
    assert session_id in rest.list_sessions(limit=1000).result().sessions
    session = rest.get_session(session_id).result()
    assert session.training_run_ids == [training.model_id]
    assert session.user_metadata == {"purpose": label}
    rest.assign_session_project(session_id, "thesis").result()
    client.close("success", detail="done").result()
    with pytest.raises(tinker.APIStatusError) as refusal:
        rehearsal_post(rehearsal, "session_heartbeat", {"session_id": session_id})
    assert refusal.value.status_code == 410


def rehearsal_post(rehearsal, route: str, body: dict) -> dict:
    """POST as the SDK's low-level client would, without its retries."""
    import httpx

    response = httpx.post(
        f"{rehearsal.base_url}/api/v1/{route}", json=body, headers={"X-API-Key": "tml-x"}
    )
    if response.is_error:
        raise tinker.APIStatusError(response.text, response=response, body=None)
    return response.json()


def test_search_filters_by_name_status_and_page(rehearsal) -> None:
    label = unique("searched")
    for _ in range(3):
        rehearsal_post(
            rehearsal,
            "create_session",
            {"tags": [], "user_metadata": {}, "sdk_version": "0", "display_name": f"{label} run"},
        )
    query = {"display_name": f"run {label}", "limit": 2}
    first = rehearsal_post(rehearsal, "sessions/search", query)
    assert len(first["sessions"]) == 2
    second = rehearsal_post(rehearsal, "sessions/search", {**query, "cursor": first["next_cursor"]})
    assert len(second["sessions"]) == 1
    assert second["next_cursor"] is None
    finished = {**query, "statuses": [{"type": "client_finished"}]}
    assert rehearsal_post(rehearsal, "sessions/search", finished)["sessions"] == []


def test_identity_and_capabilities(rehearsal) -> None:
    rest = rehearsal.rest()
    assert rest.whoami().result().user_urn == "tml:user:rehearsal"
    (model,) = rest.get_server_capabilities().result().supported_models
    assert (model.model_name, model.trainable, model.sampleable) == (rehearsal.model, True, True)
    sampler_id = rehearsal.client().create_sampling_client(base_model=rehearsal.model).result()
    assert sampler_id.get_base_model() == rehearsal.model


# Methods of RestClient that this file exercises, and those that a rehearsal answers with a
# refusal; the two must be all that the SDK has.
_EXERCISED = {
    "assign_session_project",
    "copy_weights",
    "delete_checkpoint",
    "delete_checkpoint_from_tinker_path",
    "get_external_weights_urls",
    "get_sampler",
    "get_server_capabilities",
    "get_session",
    "get_training_run",
    "get_training_run_by_tinker_path",
    "get_weights_info_by_tinker_path",
    "list_checkpoints",
    "list_sessions",
    "list_training_runs",
    "list_user_checkpoints",
    "publish_checkpoint_from_tinker_path",
    "search_sessions",
    "set_checkpoint_ttl_from_tinker_path",
    "unpublish_checkpoint_from_tinker_path",
    "whoami",
}
_REFUSED = {
    "export_session_trace",
    "get_audit_log",
    "get_billing_usage",
    "get_current_checkpoint_storage_usage",
}


def test_no_public_rest_method_is_forgotten() -> None:
    public = {
        name
        for name in dir(tinker.RestClient)
        if not name.startswith("_") and not name.endswith("_async") and name != "get_telemetry"
    }
    assert public == _EXERCISED | _REFUSED


def test_what_is_not_supported_says_so(rehearsal) -> None:
    with pytest.raises(tinker.NotFoundError, match="not supported by the rehearsal"):
        rehearsal.rest().export_session_trace("x").result()


def test_a_sampler_can_be_looked_up(rehearsal, service, training) -> None:
    rest = rehearsal.rest()
    path = training.save_weights_for_sampler(unique("l")).result().path
    service.create_sampling_client(model_path=path).result()
    session = rest.get_session(training.model_id.split(":train:")[0]).result()
    found = [rest.get_sampler(sampler).result() for sampler in session.sampler_ids]
    assert path in [sampler.model_path for sampler in found]
    assert {sampler.base_model for sampler in found} == {rehearsal.model}
    query = types.SessionSearchRequest(session_id=training.model_id.split(":train:")[0])
    page = rest.search_sessions(query).result()
    assert page.sessions[0].checkpoints_count >= 1
