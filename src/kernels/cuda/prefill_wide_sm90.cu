/* Compiles the kernels of prefill_sm90.cu for layers with a head wider than KVD_WIDTH_NARROW. */
#define KVD_PREFILL_WIDE
#include "kernels/cuda/prefill_sm90.cu"
