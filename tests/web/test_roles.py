"""Keys of each role, against the real service: the page has no button that the key may not use."""

import pytest

from web_support import browser, open_page
from conftest import Service

pytestmark = pytest.mark.slow
# Controls of a model's page and of others that need more than the role user.
TRAINER, ADMIN = ["Import", "Train it further", "Evaluate it", "Load as this type", "Unload", "Save config.json", "How faithful is it?"], ["Delete"]


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    started = Service(tmp_path_factory.mktemp("service") / "data")
    yield started
    assert started.stop() == 0


def test_a_key_sees_what_its_role_may_do(service, open_page):
    model = service.wait_job(service.job(steps=5)["id"])["fine_tuned_model"]
    admin = service.ok("POST", "/v1/keys", {"name": "first", "role": "admin"})["secret"]
    as_admin = {"headers": {"Authorization": f"Bearer {admin}"}}
    service.ok("POST", f"/v1/models/{model}/load", {"dtype": "fp32"}, **as_admin)
    secrets = {"admin": admin, **{role: service.ok("POST", "/v1/keys", {"name": role, "role": role}, **as_admin)["secret"] for role in ("user", "trainer")}}
    page = open_page(f"{service.url}/#/models")
    for role, said in (("user", ["The key in use may not load, export or delete models."]), ("trainer", ["The key in use may not delete models."]), ("admin", [])):
        page.locator("#key").click()
        page.get_by_label("API key").fill(secrets[role])
        page.get_by_role("button", name="Use it").click()
        page.get_by_role("dialog").wait_for(state="detached")
        seen = set()
        for view, title in (("explain", "Explain"), ("models", "Models"), (f"models/{model}", model)):
            page.goto(f"{service.url}/#/{view}")
            page.get_by_role("heading", name=title, exact=True).wait_for()
            if title == model:
                assert page.locator(".buttons .note").all_text_contents() == said
                if role != "user":
                    page.get_by_text("config.json", exact=True).wait_for()
            elif title == "Models":
                page.get_by_role("link", name=model).wait_for()
            seen |= {name for name in TRAINER + ADMIN if page.get_by_role("button", name=name).or_(page.get_by_role("link", name=name)).count()}
        assert seen == {*(TRAINER if role != "user" else []), *(ADMIN if role == "admin" else [])}, role
        assert page.locator(".card.failed").count() == 0
