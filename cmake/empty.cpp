// The shared library is made of the layers alone, and the precompiled header has no source; a target
// needs one of its own.
