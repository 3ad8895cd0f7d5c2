"""The explanation of one prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas


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
