"""API keys as an operator uses them: the command line, the Python client, and OpenAI's headers."""

import json
import sys
from pathlib import Path

import pytest
from terminal import additive

sys.path.insert(0, str(Path(__file__).parents[2] / "clients" / "python"))
from additive_client import APIError, Client  # noqa: E402


def run(service, key, *words):
    return additive("keys", *words, *(["--api-key", key] if key else []), url=service.url)


def test_the_command_line_makes_shows_changes_and_revokes_keys(own_service):
    refused = run(own_service, None, "create", "first")
    assert refused.returncode == 1 and "role" in refused.stderr
    made = run(own_service, None, "create", "operator", "--role", "admin")
    admin = made.stdout.strip()
    assert admin.startswith("ak-") and len(made.stdout.splitlines()) == 1 and admin not in made.stderr
    assert run(own_service, None, "list").returncode == 1
    user = json.loads(run(own_service, admin, "create", "Grüße", "--model", "a", "--model", "b", "--weight", "3", "--days", "1", "--json").stdout)
    assert (user["name"], user["role"], user["models"], user["weight"]) == ("Grüße", "user", ["a", "b"], 3)
    assert 0 <= user["expires_at"] - user["created_at"] - 24 * 3600 <= 60
    forbidden = run(own_service, user["secret"], "list")
    assert forbidden.returncode == 1 and "admin" in forbidden.stderr
    listed = run(own_service, admin, "list").stdout
    assert "operator" in listed and "Grüße" in listed and admin not in listed and user["secret"] not in listed
    shown = run(own_service, admin, "update", user["id"], "--requests-per-minute", "5", "--json")
    assert json.loads(shown.stdout)["requests_per_minute"] == 5
    assert json.loads(run(own_service, admin, "show", user["id"], "--json").stdout)["weight"] == 3
    assert run(own_service, admin, "revoke", user["id"]).returncode == 0
    assert run(own_service, user["secret"], "list").returncode == 1
    last = run(own_service, admin, "revoke", json.loads(run(own_service, admin, "list", "--json").stdout)["data"][-1]["id"])
    assert last.returncode == 1 and "last admin" in last.stderr


def test_the_python_client_has_keys(own_service):
    admin = Client(own_service.url).keys.create("operator", role="admin")["secret"]
    with pytest.raises(APIError) as refused:
        Client(own_service.url).models.list()
    assert refused.value.status == 401
    with Client(own_service.url, api_key=admin) as client:
        key = client.keys.create("batch", role="trainer", tokens_per_minute=100)
        assert client.keys.get(key["id"])["role"] == "trainer"
        assert client.keys.update(key["id"], weight=2)["weight"] == 2
        with Client(own_service.url, api_key=key["secret"]) as trainer:
            assert trainer.models.list() == []
            with pytest.raises(APIError) as refused:
                trainer.models.delete("x")
            assert (refused.value.status, refused.value.code) == (403, "permission_denied")
        assert client.keys.revoke(key["id"])["revoked_at"]
        assert [k["name"] for k in client.keys.list()] == ["batch", "operator"]
