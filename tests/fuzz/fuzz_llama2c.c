/* Fuzzes the reader of llama2.c files: in an accepted file, every tensor must be within the
 * file. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "model/checkpoint/llama2c.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void check(const uint8_t *bytes, size_t len, const kvd_config *c, const char *name)
{
    kvd_tensor t;
    if (kvd_llama2c_find("input", bytes, c, name, &t))
        abort();
    const uint8_t *data = t.data;
    if (data < bytes || t.n > (size_t)(bytes + len - data) / 4)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    static const char *const once[] = {"model.embed_tokens.weight", "model.norm.weight",
                                       "lm_head.weight"};
    static const char *const per_layer[] = {
        "input_layernorm.weight",  "self_attn.q_proj.weight", "self_attn.k_proj.weight",
        "self_attn.v_proj.weight", "self_attn.o_proj.weight", "post_attention_layernorm.weight",
        "mlp.gate_proj.weight",    "mlp.down_proj.weight",    "mlp.up_proj.weight",
    };
    kvd_err err;
    kvd_config c;
    if (kvd_llama2c_parse("input", bytes, len, &c, &err))
        return 0;
    for (size_t i = 0; i < sizeof once / sizeof once[0]; i++)
        check(bytes, len, &c, once[i]);
    for (int l = 0; l < c.n_layers; l++)
        for (size_t i = 0; i < sizeof per_layer / sizeof per_layer[0]; i++) {
            char name[96];
            (void)snprintf(name, sizeof name, "model.layers.%d.%s", l, per_layer[i]);
            check(bytes, len, &c, name);
        }
    return 0;
}
