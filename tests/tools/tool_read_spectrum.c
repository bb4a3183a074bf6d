/*
 * Compiles the example program of docs/formats.md with this project's compiler warnings.
 * test_docs.sh runs it.
 */
#include "../docs/examples/read_spectrum.c"
