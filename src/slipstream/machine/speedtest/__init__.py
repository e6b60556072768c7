"""The speed test of this computer, a stage in each file. Imports no torch: what needs it runs in a child process."""
