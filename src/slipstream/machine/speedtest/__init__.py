"""The speed test of this computer. Imports no torch: the stages that need it run in a child process."""
