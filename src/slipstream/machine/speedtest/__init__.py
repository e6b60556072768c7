"""The speed test of this computer. It imports no torch: the stages that need torch run in a child process."""
