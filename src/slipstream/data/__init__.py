"""Components that techniques install in the input path: worker processes, threads, caches, batch transport and copies
to the device. They do not decide whether it is worth using them."""
