/* The example of docs/formats.md, built with the warnings of everything else and run by test_docs.sh. */
#include "../docs/examples/read_spectrum.c"
