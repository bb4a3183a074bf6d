/* Any bytes as a config.json: refused, or a shape that hangs together. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "model/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    kvd_err err;
    kvd_config c;
    if (kvd_config_parse("input", (const char *)bytes, len, &c, &err))
        return 0;
    if (c.n_layers < 1 || c.n_heads < 1 || c.n_kv_heads < 1 || c.d_head < 2 || c.d_model < 1 || c.d_ffn < 1 ||
        c.vocab_size < 1 || c.max_positions < 1 || c.n_heads % c.n_kv_heads || c.d_head % 2)
        abort();
    if ((int64_t)c.n_heads * c.d_head > KVD_CONFIG_MAX_SIZE || kvd_config_group(&c) < 1)
        abort();
    if (!isfinite(c.norm_eps) || c.norm_eps <= 0 || !isfinite(c.rope_theta) || c.rope_theta <= 0)
        abort();
    if (c.bos_id < -1 || c.bos_id >= c.vocab_size || c.eos_id < -1 || c.eos_id >= c.vocab_size)
        abort();
    return 0;
}
