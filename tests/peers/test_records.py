"""What jobs leave behind is read back."""

from pathlib import Path

from benchmarks.peers import records
from benchmarks.peers.records import END, PROBE, START, Recorder, payload_of


def test_payload_has_its_length_whatever_it_says() -> None:
    assert payload_of(7, 1.5, 50) == "7|1.500|50|" + "x" * 49
    assert len(payload_of(PROBE, 1_800_000_000.123, 50)) == records.PAYLOAD_LENGTH


def test_recorder_writes_what_read_reads(tmp_path: Path) -> None:
    path = tmp_path / "records"
    recorder = Recorder(str(path))

    index, due, work_s = recorder.start(payload_of(7, 1.5, 50))
    recorder.end(index, due)
    recorder.close()

    assert (index, due, work_s) == (7, 1.5, 0.05)
    start, end = records.read(path)
    assert (start.index, start.kind, start.due) == (7, START, 1.5)
    assert (end.index, end.kind, end.due) == (7, END, 1.5)
    assert start.at <= end.at


def test_recorders_of_several_processes_append_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "records"
    recorders = [Recorder(str(path)) for _ in range(2)]

    for number, recorder in enumerate(recorders):
        recorder.start(payload_of(number, 0, 0))
        recorder.close()

    assert [record.index for record in records.read(path)] == [0, 1]


def test_probes_are_counted_and_not_read(tmp_path: Path) -> None:
    path = tmp_path / "records"
    recorder = Recorder(str(path))

    recorder.start(payload_of(PROBE, 0, 0))
    recorder.start(payload_of(1, 0, 0))
    recorder.close()

    assert records.count(path) == 2
    assert [record.index for record in records.read(path)] == [1]


def test_record_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "records"
    recorder = Recorder(str(path))
    recorder.start(payload_of(1, 0, 0))
    recorder.close()
    path.write_bytes(path.read_bytes() + b"\0" * 10)

    assert records.count(path) == 1
    assert len(list(records.read(path))) == 1
