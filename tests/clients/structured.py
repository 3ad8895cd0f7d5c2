"""Ask for an object of a pydantic model with the libraries that users have: structured.py URL MODEL

Prints a line of JSON for each way: its name and the object."""

import json
import sys
from typing import Literal

import instructor
import openai
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Label(BaseModel):
    colour: Literal["red", "green"]
    certain: bool


def main(url, model):
    client = instructor.from_openai(openai.OpenAI(base_url=url, api_key="unused", max_retries=0), mode=instructor.Mode.JSON_SCHEMA)
    ask = {"model": model, "temperature": 0, "max_tokens": 200}
    ways = {"instructor": lambda: client.chat.completions.create(response_model=Label, messages=[{"role": "user", "content": "99"}], max_retries=1, **ask)}
    for name, more in (("langchain", {}), ("langchain responses", {"use_responses_api": True})):
        chat = ChatOpenAI(base_url=url, api_key="unused", max_retries=0, **ask, **more)
        for strict in (None, True):
            labels = chat.with_structured_output(Label, method="json_schema", strict=strict)
            ways[f"{name} {strict}"] = lambda labels=labels: labels.invoke("99")
    for name, way in ways.items():
        label = way()
        assert isinstance(label, Label), label
        print(json.dumps([name, label.model_dump()]))


if __name__ == "__main__":
    main(*sys.argv[1:])
