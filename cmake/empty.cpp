// The shared library is made of the layers alone; a target needs one source of its own.
