"""The explanation of one prediction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas
    import pyarrow


def numbers(value: Any, at: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each float in a value of the JSON. `at` has the columns that its enclosing objects set, and the token
    of the first number of a list."""
    if isinstance(value, float):
        yield {**at, "value": value}
    elif isinstance(value, dict):
        at = {**at, **{key: value[key] for key in ("position", "layer", "head", "round") if key in value}}
        at |= {"position": None} if at["position"] == "all" else {}
        at["first"] = value.get("window", [0])[0]
        for key, member in value.items():
            path = f"{at['path']}.{key}" if at["path"] else key
            within: dict[str, dict[str, Any]] = {"span": {"position": None}, "source": {"side": "source"}}
            yield from numbers(member, {**at, "path": path, **within.get(key, {})})
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for member in value:
            yield from numbers(member, at)
    elif isinstance(value, list) and value and isinstance(value[0], list):
        yield from ({**at, "token": token, "value": number} for token, number in value)
    elif isinstance(value, list) and value and isinstance(value[0], float):
        column, first = ("position", 0) if at["path"].endswith("log_normalizer") else ("token", at["first"])
        yield from ({**at, column: first + i, "value": number} for i, number in enumerate(value))


class Numbers:
    """`raw` is the service's JSON (`Explanation` in openapi.yaml)."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        self.tokens: list[dict[str, Any]] = raw["tokens"]
        self.weights: list[dict[str, Any]] = raw["weights"]
        self.contributions: dict[str, Any] | None = raw.get("contributions")

    def to_pandas(self) -> pandas.DataFrame:
        """A row for each token: id, text, offset; the parts of contributions in logits (token, position, bias); and the
        mean or rollout of the weights if `aggregate` requested it. NaN after the explained position."""
        import pandas

        frame: pandas.DataFrame = pandas.DataFrame(self.tokens, columns=["id", "text", "offset"])
        if self.contributions:
            for column, name in (("token", "tokens"), ("position", "positions"), ("bias", "biases")):
                frame[column] = pandas.Series(self.contributions[name], dtype=float)
        if attribution := self.raw.get("attribution"):
            frame[attribution["method"]] = pandas.Series(attribution["tokens"], dtype=float)
        if aggregate := self.raw.get("aggregate"):
            frame["alpha"] = pandas.Series(aggregate["alpha"], dtype=float)
        return frame

    def to_arrow(self) -> pyarrow.Table:
        """The columns of the service's CSV: a row for each number of the JSON, which is a float32. Null where a column
        has no value."""
        import pyarrow

        tokens = {"text": self.tokens, "source": self.raw.get("source", {}).get("tokens", [])}
        none = dict.fromkeys(("position", "layer", "head", "round", "token", "token_id", "text"))
        rows = list(numbers(self.raw, {**none, "path": "", "side": "text"}))
        for row in rows:
            if row["token"] is None:
                row["side"] = None
            else:
                token = tokens[row["side"]][row["token"]]
                row |= {"token_id": token["id"], "text": token["text"]}
        text, index = pyarrow.string(), pyarrow.int32()
        types = {"path": text, "position": index, "layer": index, "head": index, "round": text, "side": text, "token": index,
                 "token_id": index, "text": text, "value": pyarrow.float32()}
        return pyarrow.Table.from_pylist(rows, schema=pyarrow.schema(types.items()))
