/* Fuzzes the reader of safetensors files: in an accepted file, every tensor must be within the
 * file. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "model/checkpoint/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    kvd_err err;
    kvd_safetensors *s = kvd_safetensors_parse("input", bytes, len, &err);
    for (size_t i = 0; s && i < kvd_safetensors_count(s); i++) {
        kvd_tensor t;
        const int status = kvd_safetensors_find(s, kvd_safetensors_name(s, i), &t, &err);
        if (status > 0)
            abort();
        if (status)
            continue;
        const uint8_t *data = t.data;
        if (data < bytes || t.n * kvd_dtype_bytes(t.dtype) > (size_t)(bytes + len - data))
            abort();
    }
    kvd_safetensors_close(s);
    return 0;
}
