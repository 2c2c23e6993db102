"""Describes the routes of files and batches, and their schemas."""

from headgate.surface.api.operation import Operation, Operations, Parameter, Schema, ref

BATCHES = "Files and batches"
ERRORS = (400, 401, 403, 404, 503, 507)


def _text(about: str = "") -> Schema:
    return {"type": "string", **({"description": about} if about else {})}


def _stamp() -> Schema:
    return {"type": ["integer", "null"]}


def _path(name: str) -> Parameter:
    return Parameter(name=name, about="Its id.", where="path")


def _query(name: str, about: str, kind: str = "string") -> Parameter:
    return Parameter(name=name, about=about, schema={"type": kind})


PAGE = (
    _query("after", "The id of the last one of the page before."),
    _query("limit", "How many at most.", "integer"),
)
ADMIN_ERRORS = (400, 401, 403, 404, 503, 507)
OF_BATCHES: Operations = {
    ("POST", "/v1/files"): Operation(
        tag=BATCHES,
        name="upload_file",
        summary="Upload the requests of a batch",
        about="One JSON object per line: `custom_id`, `method` (POST), `url` (the batch's endpoint) and `body`. It is "
        "written to the disk as it comes.",
        body={
            "type": "object",
            "properties": {
                "purpose": {"type": "string", "enum": ["batch"]},
                "file": {"type": "string", "contentMediaType": "application/jsonl"},
            },
            "required": ["purpose", "file"],
        },
        body_type="multipart/form-data",
        answer=ref("File"),
        errors=(*ERRORS, 413, 415),
    ),
    ("GET", "/v1/files"): Operation(
        tag=BATCHES,
        name="files",
        summary="List your files",
        parameters=(*PAGE, _query("order", "desc (the newest first) or asc."), _query("purpose", "Only these.")),
        answer=ref("Files"),
        errors=ERRORS,
    ),
    ("GET", "/v1/files/*"): Operation(
        tag=BATCHES,
        name="file",
        summary="Look at a file",
        about="Below it, `/content` is what is in the file, as it was uploaded or as the batch wrote it.",
        path="/v1/files/{file}",
        parameters=(_path("file"),),
        answer=ref("File"),
        errors=ERRORS,
    ),
    ("DELETE", "/v1/files/*"): Operation(
        tag=BATCHES,
        name="delete_file",
        summary="Delete a file",
        about="Not one that is the input of a batch that is not over: 409.",
        path="/v1/files/{file}",
        parameters=(_path("file"),),
        answer=ref("FileDeleted"),
        errors=(*ERRORS, 409),
    ),
    ("POST", "/v1/batches"): Operation(
        tag=BATCHES,
        name="create_batch",
        summary="Have the requests of a file served while there is room",
        about="They run in lane batch, as requests of your tenant, and make way for all others. What is wrong with a "
        "line is told for that line.",
        body=ref("BatchRequest"),
        example={"input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h"},
        answer=ref("Batch"),
        errors=(*ERRORS, 413, 415, 429),
    ),
    ("GET", "/v1/batches"): Operation(
        tag=BATCHES,
        name="batches",
        summary="List your batches",
        parameters=PAGE,
        answer=ref("Batches"),
        errors=ERRORS,
    ),
    ("GET", "/v1/batches/*"): Operation(
        tag=BATCHES,
        name="batch",
        summary="Look at a batch",
        path="/v1/batches/{batch}",
        parameters=(_path("batch"),),
        answer=ref("Batch"),
        errors=ERRORS,
    ),
    ("POST", "/v1/batches/*"): Operation(
        tag=BATCHES,
        name="cancel_batch",
        summary="Cancel a batch",
        about="Lines under way are ended. What has a result keeps it.",
        path="/v1/batches/{batch}/cancel",
        parameters=(_path("batch"),),
        answer=ref("Batch"),
        errors=(*ERRORS, 415),
    ),
    ("GET", "/admin/batches"): Operation(
        tag=BATCHES,
        name="all_batches",
        summary="The batches of all tenants, and what they wait for",
        who="admin",
        parameters=PAGE,
        answer={"type": "object"},
        errors=ADMIN_ERRORS,
    ),
    ("GET", "/admin/batches/*"): Operation(
        tag=BATCHES,
        name="any_batch",
        summary="One batch, of any tenant",
        who="admin",
        path="/admin/batches/{batch}",
        parameters=(_path("batch"),),
        answer=ref("Batch"),
        errors=ADMIN_ERRORS,
    ),
    ("POST", "/admin/batches/*"): Operation(
        tag=BATCHES,
        name="cancel_any_batch",
        summary="Cancel a batch of any tenant",
        who="admin",
        path="/admin/batches/{batch}/cancel",
        parameters=(_path("batch"),),
        answer=ref("Batch"),
        errors=(*ADMIN_ERRORS, 413, 415),
    ),
}
COUNT: Schema = {"type": "integer", "minimum": 0}
BATCH_SCHEMAS: dict[str, Schema] = {
    "File": {
        "type": "object",
        "description": "As OpenAI's API has it.",
        "required": ["id", "object", "bytes", "created_at", "filename", "purpose"],
        "properties": {
            "id": _text(),
            "object": {"type": "string", "enum": ["file"]},
            "bytes": COUNT,
            "created_at": COUNT,
            "expires_at": _stamp(),
            "filename": _text(),
            "purpose": {"type": "string", "enum": ["batch", "batch_output"]},
            "status": {"type": "string", "enum": ["processed"]},
        },
    },
    "FileDeleted": {
        "type": "object",
        "properties": {"id": _text(), "object": _text(), "deleted": {"type": "boolean"}},
    },
    "BatchRequest": {
        "type": "object",
        "required": ["input_file_id", "endpoint", "completion_window"],
        "properties": {
            "input_file_id": _text(),
            "endpoint": {
                "type": "string",
                "enum": ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"],
            },
            "completion_window": {"type": "string", "enum": ["24h"]},
            "metadata": {"type": ["object", "null"], "additionalProperties": {"type": "string"}},
        },
    },
    "Batch": {
        "type": "object",
        "description": "As OpenAI's API has it; for admins also tenant, lines under way, and what it waits for.",
        "required": ["id", "object", "endpoint", "status", "input_file_id", "request_counts", "created_at"],
        "properties": {
            "id": _text(),
            "object": {"type": "string", "enum": ["batch"]},
            "endpoint": _text(),
            "model": {"type": ["string", "null"]},
            "status": {
                "type": "string",
                "enum": [
                    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling",
                    "cancelled",
                ],
            },
            "errors": {"type": ["object", "null"]},
            "input_file_id": _text(),
            "output_file_id": {"type": ["string", "null"], "description": "Of the lines that were answered."},
            "error_file_id": {"type": ["string", "null"], "description": "Of all others."},
            "completion_window": _text(),
            "created_at": COUNT,
            "expires_at": _stamp(),
            "request_counts": {
                "type": "object",
                "properties": {"total": COUNT, "completed": COUNT, "failed": COUNT},
            },
            "metadata": {"type": ["object", "null"]},
        },
    },
    **{
        name: {
            "type": "object",
            "required": ["object", "data", "has_more"],
            "properties": {
                "object": {"type": "string", "enum": ["list"]},
                "data": {"type": "array", "items": ref(of)},
                "first_id": {"type": ["string", "null"]},
                "last_id": {"type": ["string", "null"]},
                "has_more": {"type": "boolean"},
            },
        }
        for name, of in (("Files", "File"), ("Batches", "Batch"))
    },
}  # fmt: skip
