/* Fuzzes the reader of config.json: an accepted configuration must be consistent. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "model/checkpoint/config.h"
#include "model/checkpoint/family.h"

static void check_places(const kvd_config *c)
{
    for (int part = 0; part < KVD_N_PARTS; part++)
        for (int bias = 0; bias < 2; bias++) {
            kvd_place p;
            if (!kvd_part_place(c, (kvd_part)part, bias, c->n_layers - 1, &p))
                continue;
            if (p.rows < 1 || p.block < 1 || p.rows % p.block || p.stride < p.block ||
                p.first + (p.rows / p.block - 1) * p.stride + p.block > p.stored_rows)
                abort();
            if (!kvd_family_knows(c, p.name))
                abort();
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    kvd_err err;
    kvd_config c;
    if (kvd_config_parse("input", (const char *)bytes, len, &c, &err))
        return 0;
    if (c.n_layers < 1 || c.n_heads < 1 || c.n_kv_heads < 1 || c.d_head < 1 || c.d_embed < 0 ||
        c.d_model < 1 || c.d_ffn < 1 || c.vocab_size < 1 || c.max_positions < 1 ||
        c.n_heads % c.n_kv_heads)
        abort();
    const bool rope = c.positions == KVD_POSITIONS_ROPE;
    if ((int64_t)c.n_heads * c.d_head > KVD_CONFIG_MAX_SIZE || kvd_config_group(&c) < 1)
        abort();
    if (!isfinite(c.norm_eps) || c.norm_eps <= 0 ||
        (rope && (!isfinite(c.rope_theta) || c.rope_theta <= 0 || c.d_head % 2)))
        abort();
    if (rope && c.rope_scaling == KVD_ROPE_LONGROPE) {
        if (c.rope_original_positions < 1 || !isfinite(c.rope_attention_factor) ||
            c.rope_attention_factor <= 0)
            abort();
        for (int i = 0; i < c.d_head / 2; i++)
            if (!(c.rope_short[i] > 0) || !(c.rope_long[i] > 0))
                abort();
    }
    for (int l = 0; l < c.n_layers; l += 1 + c.n_layers / 1000)
        if (kvd_config_window(&c, l) > KVD_CONFIG_MAX_SIZE)
            abort();
    check_places(&c);
    if (c.bos_id < -1 || c.bos_id >= c.vocab_size || c.eos_id < -1 || c.eos_id >= c.vocab_size)
        abort();
    return 0;
}
