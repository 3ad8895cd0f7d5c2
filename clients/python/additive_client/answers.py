"""The API's answers, by the names of openapi.yaml, which says what each field means."""

from __future__ import annotations

from typing import Any, TypedDict


class Deleted(TypedDict):
    id: str
    object: str
    deleted: bool


class Model(TypedDict):
    id: str
    object: str
    created: int
    owned_by: str
    additive: dict[str, Any]


class Adapter(TypedDict):
    id: str
    object: str
    created_at: int
    base: str
    base_digest: str
    kind: str
    parameters: int
    job: str


class ModelCard(TypedDict):
    object: str
    id: str
    source: str | None
    job: dict[str, Any] | None
    parents: list[dict[str, str]]
    files: list[dict[str, Any]]
    recipe: dict[str, Any] | None
    resolved: dict[str, Any] | None
    results: dict[str, Any] | None
    license: str | None
    origin: dict[str, Any] | None
    evaluations: list[dict[str, Any]]


class _File(TypedDict):
    id: str
    object: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    format: str
    status: str


class File(_File, total=False):
    xxh3: str | None
    sha256: str | None
    expires_at: int


class FileStatistics(TypedDict):
    object: str
    id: str
    model: str | None
    kind: str
    tokenizer: str
    bytes: int
    documents: int
    characters: int
    tokens: int
    lengths: dict[str, dict[str, int] | None]
    duplicates: dict[str, Any]
    invalid_utf8_lines: int
    scripts: list[dict[str, Any]]


class Progress(TypedDict, total=False):
    recipe: dict[str, Any] | None
    resolved: dict[str, Any] | None
    step: int | None
    total_steps: int | None
    tokens_per_second: float | None
    train_loss: float | None
    valid_loss: float | None
    best_step: int | None
    best_valid_loss: float | None
    result_step: int | None
    skipped_steps: int
    empty_steps: int
    gradient_noise: float | None
    suggested_learning_rate: float | None
    bits_per_byte: float | None
    perplexity: float | None
    accuracy: float | None
    eta_seconds: float | None
    adapter: str | None
    queue_position: int | None
    expected_start: int | None
    paused_reason: dict[str, Any] | None


class _Job(TypedDict):
    id: str
    object: str
    created_at: int
    model: str
    status: str
    training_file: str
    additive: Progress


class Job(_Job, total=False):
    finished_at: int | None
    fine_tuned_model: str | None
    validation_file: str | None
    trained_tokens: int | None
    estimated_finish: int | None
    seed: int
    metadata: dict[str, str] | None
    error: dict[str, Any] | None


class JobEvent(TypedDict):
    id: str
    object: str
    created_at: int
    level: str
    message: str
    type: str
    data: dict[str, Any] | None


class EvaluationProgress(TypedDict):
    tokens: int
    total_tokens: int
    tokens_per_second: float | None
    eta_seconds: float | None
    nats_per_token: float | None


class EvaluationReport(TypedDict):
    object: str
    tokens: int
    bytes: int
    nats_per_token: float | None
    perplexity: float | None
    bits_per_byte: float | None
    accuracy: float | None
    positions: list[dict[str, Any]]
    rows: list[dict[str, Any]]


class Evaluation(TypedDict):
    id: str
    object: str
    created_at: int
    finished_at: int | None
    status: str
    model: str
    file: str
    settings: dict[str, Any]
    progress: EvaluationProgress
    error: dict[str, Any] | None
    result: EvaluationReport | None


class BatchCounts(TypedDict):
    total: int
    completed: int
    failed: int


class Batch(TypedDict):
    id: str
    object: str
    endpoint: str
    errors: dict[str, Any] | None
    input_file_id: str
    completion_window: str
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchCounts
    metadata: dict[str, str] | None
    additive: dict[str, Any]


class Key(TypedDict):
    id: str
    object: str
    name: str
    role: str
    models: list[str] | None
    requests_per_minute: int
    tokens_per_minute: int
    weight: int
    created_at: int
    expires_at: int | None
    last_used_at: int | None
    revoked_at: int | None


class NewKey(Key):
    secret: str


class Checkpoint(TypedDict):
    id: str
    object: str
    created_at: int
    fine_tuned_model_checkpoint: str
    step_number: int
    fine_tuning_job_id: str
    metrics: dict[str, float | None]


class _CompletionChoice(TypedDict):
    index: int
    text: str
    finish_reason: str | None


class CompletionChoice(_CompletionChoice, total=False):
    logprobs: dict[str, Any] | None
    alpha: list[Any]
    tool_calls: list[dict[str, Any]]


class _Completion(TypedDict):
    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]


class Completion(_Completion, total=False):
    usage: dict[str, int] | None
    session: dict[str, Any]
    timings: dict[str, float]


class ChatCompletion(TypedDict):
    """In a chunk each choice has `delta` instead of `message`."""

    id: str
    object: str
    created: int
    model: str
    choices: list[dict[str, Any]]


class _SessionInfo(TypedDict):
    id: str
    object: str
    model: str
    tokens: int
    state_bytes: int
    created: int
    expires_at: int | None


class SessionInfo(_SessionInfo, total=False):
    durable: bool
    snapshot_every: int | None
    snapshot_before_calls: bool
    adapter: str
    snapshot: str
    explain: bool
    position_policy: str


class _Snapshot(TypedDict):
    id: str
    object: str
    session: str
    name: str | None
    tokens: int
    bytes: int
    created_at: int


class Snapshot(_Snapshot, total=False):
    automatic: bool
    damaged: bool


class SessionOrigin(TypedDict):
    session: str
    snapshot: str | None
    tokens: int


class SessionBranch(TypedDict):
    id: str
    object: str
    tokens: int
    created: int
    parent: SessionOrigin | None
    snapshots: list[Snapshot]


class SessionTree(TypedDict):
    object: str
    session: str
    data: list[SessionBranch]
    has_more: bool


class _Response(TypedDict):
    id: str
    object: str
    created_at: int
    model: str
    status: str
    output: list[dict[str, Any]]
    usage: dict[str, int] | None


class Response(_Response, total=False):
    error: dict[str, Any] | None
    incomplete_details: dict[str, Any] | None
