"""Components that techniques install in the input path, such as worker processes, threads, caches, batch transport and
copies to the device. Only `slipstream.DataLoader` decides itself whether a component is worth using."""
