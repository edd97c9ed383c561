"""Random records and batches, small enough that a thousand of them are quick."""

from hypothesis import strategies as st

from penstock.batch import Record, build_batch

BASE_TIMESTAMP_MS = 1_700_000_000_000

small_bytes = st.binary(max_size=40)
nullable_bytes = st.none() | small_bytes
header_lists = st.lists(st.tuples(st.text(max_size=8), nullable_bytes), max_size=3).map(tuple)
timestamps = st.one_of(
    st.integers(BASE_TIMESTAMP_MS, BASE_TIMESTAMP_MS + 1000),
    st.integers(-1, 2**63 - 2),  # whose differences fit into a record
)


@st.composite
def record_lists(draw: st.DrawFn, *, min_size: int = 1, gaps: bool = False) -> list[Record]:
    """Records whose offsets start at 0 and rise, by one each unless `gaps` are asked for."""
    rows = draw(
        st.lists(
            st.tuples(timestamps, nullable_bytes, nullable_bytes, header_lists),
            min_size=min_size,
            max_size=12,
        )
    )
    steps = draw(st.lists(st.integers(1, 300 if gaps else 1), min_size=len(rows), max_size=len(rows)))
    offset = -1
    records = []
    for step, row in zip(steps, rows, strict=True):
        offset += step
        records.append(Record(offset, *row))
    return records


codecs = st.integers(0, 4)


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    return build_batch(draw(record_lists()), compression=draw(codecs), leader_epoch=draw(st.integers(0, 9)))
