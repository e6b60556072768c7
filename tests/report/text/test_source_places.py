"""Locations are relative to the directory in which the command was started."""

from slipstream.records import Site
from slipstream.report.text.locations import relative, where


def test_a_file_inside_the_working_directory_is_relative() -> None:
    assert where(Site("/home/ada/project/sub/data.py", 31), "/home/ada/project") == "sub/data.py:31"


def test_a_file_outside_stays_absolute() -> None:
    assert where(Site("/home/ada/other/data.py", 31), "/home/ada/project") == "/home/ada/other/data.py:31"
    assert relative("/home/ada/project2/data.py", "/home/ada/project") == "/home/ada/project2/data.py"


def test_code_without_a_file_and_findings_without_a_line() -> None:
    assert where(Site("<string>", 3), "/home/ada") == "<string>:3"
    assert where(None, "/home/ada") == ""
