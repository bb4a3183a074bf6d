/* Compiles the kernels of prefill_sm90.cu for layers with a sliding window. */
#define KVD_PREFILL_WINDOW
#include "kernels/cuda/prefill_sm90.cu"
