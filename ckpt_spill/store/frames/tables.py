"""Arrow values by themselves: tables, record batches, arrays with and without chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckpt_spill.store.frames import arrow, extension
from ckpt_spill.store.frames.untyped import pa

if TYPE_CHECKING:
    from ckpt_spill.store.frames.buffers import Description, Plan, Sink, Source


def describe(value: Any, sink: Sink) -> Description | None:
    """Describe an Arrow value, trimmed to the slice that it is; None if it is of a class not handled here."""
    if type(value) is pa.Table and value.num_columns:
        chunked = [[arrow.describe(chunk, sink) for chunk in column.chunks] for column in value.columns]
        return {"kind": "table", "schema": arrow.describe_schema(value.schema), "columns": chunked}
    if type(value) is pa.RecordBatch and value.num_columns:
        columns = [arrow.describe(column, sink) for column in value.columns]
        return {"kind": "batch", "schema": arrow.describe_schema(value.schema), "columns": columns}
    if type(value) is pa.ChunkedArray:
        return {"kind": "chunked"} | extension.describe_chunked(value, sink)
    if isinstance(value, pa.Array):
        return {"kind": "chunk", "type": arrow.describe_type(value.type), "data": arrow.describe(value, sink)}
    return None


def plan_table(description: Description, source: Source) -> Plan:
    """Take the buffers of a table."""
    schema = arrow.build_schema(description["schema"])
    columns = [
        [arrow.plan(field.type, chunk, source) for chunk in chunks]
        for field, chunks in zip(schema, description["columns"], strict=True)
    ]

    def build() -> Any:
        made = [
            pa.chunked_array([chunk() for chunk in chunks], type=field.type)
            for field, chunks in zip(schema, columns, strict=True)
        ]
        return pa.Table.from_arrays(made, schema=schema)

    return build


def plan_batch(description: Description, source: Source) -> Plan:
    """Take the buffers of a record batch."""
    schema = arrow.build_schema(description["schema"])
    columns = [
        arrow.plan(field.type, column, source) for field, column in zip(schema, description["columns"], strict=True)
    ]
    return lambda: pa.RecordBatch.from_arrays([column() for column in columns], schema=schema)


def plan_chunk(description: Description, source: Source) -> Plan:
    """Take the buffers of an array."""
    return arrow.plan(arrow.build_type(description["type"]), description["data"], source)
