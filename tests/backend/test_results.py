"""What `get_result` says of a task, from its call to the end of its record, on a real server with a real worker."""

import pytest

from tests.backend import samples


def test_it_works(configure, queue_name, burst):
    result = samples.add.using(queue_name=queue_name).enqueue(1, b=2)
    print(result)
    burst()
    result.refresh()
    print(result)
    assert result.return_value == 3

@pytest.mark.parametrize("name",["fail","fail_async"])
def test_fail(configure, queue_name, burst, name):
    result = getattr(samples,name).using(queue_name=queue_name, max_attempts=1).enqueue("x")
    burst()
    result.refresh()
    print(result)
    assert result.status == "FAILED"
