"""A bar of tqdm where it is installed, else a line of text for each event with numbers."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any


class Progress:
    def __init__(self, shown: bool, unit: str = "step") -> None:
        self.shown, self.unit = shown, unit
        self.bar: Any = None

    def show(self, data: dict[str, Any]) -> None:
        if not self.shown:
            return
        step, total = data.get("step"), data.get("total_steps")
        losses = {name: f"{data[name]:.3f}" for name in ("train_loss", "valid_loss", "nats_per_token") if data.get(name) is not None}
        try:
            from tqdm import tqdm
        except ImportError:
            print(f"{self.unit} {step}" + (f" of {total}" if total else ""), *(f"{k} {v}" for k, v in losses.items()), file=sys.stderr)
            return
        if self.bar is None:
            self.bar = tqdm(total=total, unit=self.unit)
        self.bar.set_postfix(losses, refresh=False)
        self.bar.update((step or 0) - self.bar.n)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.bar is not None:
            self.bar.close()
