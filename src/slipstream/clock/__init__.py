"""Host time, device time, and nothing that waits."""
