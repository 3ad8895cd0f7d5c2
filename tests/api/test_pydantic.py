"""Schemas of pydantic models: each has a grammar, and every text of it makes an object of the model."""

import pytest
from openai.lib._pydantic import to_strict_json_schema

from pydantic_models import CHECKED_FURTHER, MODELS
from test_schemas import FORMATS, Grammars, Validator, validates


@pytest.fixture(scope="module")
def drawn():
    """Ask for texts of a schema, which must have a grammar."""
    grammars = Grammars()

    def draw(schema):
        answer = grammars.ask(schema, draw=20, seed=5)
        assert "refused" not in answer, answer
        assert len(set(answer["drawn"])) > 2
        return answer["drawn"]
    yield draw
    grammars.close()


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_a_model_reads_every_text_of_its_schema(drawn, model):
    schema = model.model_json_schema()
    validator = Validator(schema, format_checker=FORMATS)
    for text in drawn(schema):
        assert validates(validator, text), text
        if model not in CHECKED_FURTHER:
            model.model_validate_json(text)


@pytest.mark.parametrize("model", [m for m in MODELS if m not in CHECKED_FURTHER], ids=lambda m: m.__name__)
def test_a_model_reads_every_text_of_the_schema_that_a_client_makes(drawn, model):
    for text in drawn(to_strict_json_schema(model)):
        model.model_validate_json(text)
