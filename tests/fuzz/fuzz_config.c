/* Fuzzes config.json and values of option --method. An accepted configuration must be consistent.
 * An accepted method, written out and parsed again, must have the same settings. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "methods/method.h"
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
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);

/* Replaces one input in 16 by a valid value of --method, such as "h2o+zack". Then mutates the
 * input. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed)
{
    enum { RATE = 16 };
    kvd_method_entry e;
    int n = 0;
    while (kvd_method_entry_at(n, &e))
        n++;
    if (seed % RATE == 0 && most >= 256 && kvd_method_entry_at((int)(seed / RATE) % n, &e)) {
        char text[256];
        const char *const key = e.info->parameter ? e.info->parameter->key : NULL;
        snprintf(text, sizeof text, "%s%s%s%s", e.info->name, seed / RATE / n % 2 ? "+zack" : "",
                 key ? "," : ",p=0.5", key ? key : "");
        memcpy(data, text, size = strlen(text));
        if (key)
            size +=
                (size_t)snprintf((char *)data + size, most - size, "=%g,p=0.5",
                                 isnan(e.info->parameter->value) ? 1 : e.info->parameter->value);
    }
    return LLVMFuzzerMutate(data, size, most);
}

static void parse_method(const uint8_t *bytes, size_t len)
{
    kvd_err err;
    kvd_method m, again;
    kvd_method_tradeoff t;
    char *const text = strndup((const char *)bytes, len), changed[KVD_SETTINGS],
                repeat[sizeof m.name + KVD_SETTINGS];
    if (text && !kvd_method_parse(text, &m, &err)) {
        if (strlen(m.settings) + 1 == KVD_SETTINGS)
            abort();
        kvd_method_changed_settings(m.name, m.settings, "", changed);
        snprintf(repeat, sizeof repeat, "%s%s%s", m.name, *changed ? "," : "", changed);
        if (kvd_method_parse(repeat, &again, &err) || strcmp(again.settings, m.settings))
            abort();
        if (!kvd_method_tradeoff_find(&m, NULL, &t, &err)) {
            kvd_method_tradeoff_set(&m, &t, kvd_method_tradeoff_at(&t, 0.5), &again);
            (void)kvd_method_tradeoff_value(&again, &t);
        }
    }
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    kvd_err err;
    kvd_config c;
    parse_method(bytes, len);
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
