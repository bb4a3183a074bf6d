/* usage: tool_quantisers DUMP.h5 TOKENS METHOD OUT.h5
 *
 * Quantises the first TOKENS tokens of DUMP.h5 as one prompt, for
 * tests/oracle/public_quantisers.py. Writes to OUT.h5:
 *
 * /keys, /values [layer][kv_head][token][dim]   dequantised K and V, float32
 * /bits [layer][kv_head][K or V][2]             bits of codes; bits of scales and other tables
 *
 * Only for the method kvquant:
 * /range [layer][kv_head][dim][2]               middle and half width of a key channel's range
 * /levels [layer][K or V][2][2^bits]            levels for encoding; levels for decoding */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/activations.h"
#include "methods/bits/levels.h"
#include "methods/method.h"

static const kvd_schema schema = {"quantised", 1, "Keys and values as a read finds them."};

typedef struct {
    kvd_activations *dump;
    kvd_method method;
    void *self;
    size_t n;
    kvd_h5 out;
} work;

/* Quantises K or V (side), and writes the dequantised numbers to decoded [layer][head][n][d]. Array
 * bits [layer][head][KVD_N_SIDES][2] receives two sizes in bits: of the codes, and of the scales
 * and tables. */
static int code_side(const work *w, kvd_side side, float *decoded, double *bits, kvd_err *err)
{
    const kvd_model_info *const m = &w->dump->model;
    const size_t d = (size_t)m->d_head, heads = (size_t)m->n_kv_heads;
    const kvd_x which = side == KVD_VALUES                      ? KVD_X_V
                        : w->method.plan.bits->keys_before_rope ? KVD_X_K_PRE
                                                                : KVD_X_K;
    float *const x = malloc(w->n * d * sizeof *x), *const scratch = malloc(w->n * d * sizeof *x);
    uint8_t *const level = malloc(w->n);
    uint32_t *const position = malloc(w->n * sizeof *position);
    int status =
        x && scratch && level && position ? 0 : kvd_no_memory(err, "rows", w->n * d * sizeof *x);
    for (size_t t = 0; !status && t < w->n; t++) {
        level[t] = KVD_LEVEL_HIGH;
        position[t] = (uint32_t)t;
    }
    for (size_t i = 0; !status && i < (size_t)m->n_layers * heads; i++) {
        const kvd_bits_block b = {.side = side,
                                  .layer = (int)(i / heads),
                                  .kv_head = (int)(i % heads),
                                  .n = w->n,
                                  .d = d,
                                  .x = x,
                                  .level = level,
                                  .position = position,
                                  .prompt = true};
        kvd_bits_count count = {0, 0};
        status =
            kvd_activations_rows(w->dump, which, b.layer, b.kv_head, 0, w->n, x, scratch, err) ||
            w->method.plan.bits->code(w->self, &b, decoded + i * w->n * d, &count, err);
        bits[(i * KVD_N_SIDES + side) * 2] = count.payload;
        bits[(i * KVD_N_SIDES + side) * 2 + 1] = count.side;
    }
    free(position);
    free(level);
    free(scratch);
    free(x);
    return status;
}

static int write_tables(work *w, kvd_err *err)
{
    const kvd_model_info *const m = &w->dump->model;
    kvd_kvquant_tables t;
    kvd_kvquant_tables_of(w->self, &t);
    const kvd_h5_spec range = {"/range",
                               "Middle and half width of a key's channel.",
                               "1",
                               H5T_IEEE_F32LE,
                               4,
                               {(hsize_t)m->n_layers, (hsize_t)m->n_kv_heads, t.range_width, 2},
                               {"layer", "kv_head", "dim", "bound"}};
    const kvd_h5_spec levels = {
        "/levels",
        "Levels a number is compared with, and those it is read as.",
        "1",
        H5T_IEEE_F32LE,
        4,
        {(hsize_t)m->n_layers, KVD_N_SIDES, 2, 1U << (int)w->method.plan.bits_values.value[0]},
        {"layer", "side", "use", "level"}};
    return kvd_h5_write(&w->out, &range, H5T_NATIVE_FLOAT, t.range, err) ||
           kvd_h5_write(&w->out, &levels, H5T_NATIVE_FLOAT, t.levels, err);
}

static int write_all(work *w, kvd_err *err)
{
    const kvd_model_info *const m = &w->dump->model;
    const hsize_t layers = (hsize_t)m->n_layers, heads = (hsize_t)m->n_kv_heads,
                  d = (hsize_t)m->d_head;
    const size_t size = layers * heads * w->n * d;
    float *const decoded = malloc(size * sizeof *decoded);
    double *const bits = malloc(layers * heads * KVD_N_SIDES * 2 * sizeof *bits);
    int status =
        decoded && bits ? 0 : kvd_no_memory(err, "decoded numbers", size * sizeof *decoded);
    for (int side = 0; !status && side < KVD_N_SIDES; side++) {
        const kvd_h5_spec s = {side == KVD_KEYS ? "/keys" : "/values",
                               "What a read finds.",
                               "1",
                               H5T_IEEE_F32LE,
                               4,
                               {layers, heads, w->n, d},
                               {"layer", "kv_head", "token", "dim"}};
        status = code_side(w, (kvd_side)side, decoded, bits, err) ||
                 kvd_h5_write(&w->out, &s, H5T_NATIVE_FLOAT, decoded, err);
    }
    const kvd_h5_spec s = {"/bits",
                           "Bits of codes, and of scales, indices and other side information.",
                           "bit",
                           H5T_IEEE_F64LE,
                           4,
                           {layers, heads, KVD_N_SIDES, 2},
                           {"layer", "kv_head", "side", "part"}};
    status = status || kvd_h5_write(&w->out, &s, H5T_NATIVE_DOUBLE, bits, err) ||
             (w->method.plan.bits == &kvd_bits_kvquant && write_tables(w, err));
    free(bits);
    free(decoded);
    return status;
}

static int open_method(work *w, const kvd_config *c, kvd_err *err)
{
    const kvd_method_setup setup = {.config = c, .calibration = w->dump};
    const kvd_bits_method *const bits = w->method.plan.bits;
    if (!bits || strcmp(bits->info.name, w->method.name) != 0 || bits->all_heads)
        return kvd_fail(err, "'%s' is no method of the bits axis that codes a head by itself",
                        w->method.name);
    if (w->n < 1 || w->n > w->dump->n_tokens)
        return kvd_fail(err, "%zu tokens of a dump of %zu", w->n, w->dump->n_tokens);
    return kvd_bits_open(bits, &w->method.plan.bits_values, &setup, &w->self, err);
}

static int run(int argc, char **argv, kvd_err *err)
{
    kvd_common_options opt = {.seed = 1};
    kvd_activations dump = {0};
    work w = {.dump = &dump};
    kvd_run r;
    if (argc != 5)
        return kvd_fail(err, "usage: tool_quantisers DUMP.h5 TOKENS METHOD OUT.h5");
    w.n = strtoul(argv[2], NULL, 10);
    if (kvd_method_parse(argv[3], &w.method, err) || kvd_activations_open(&dump, argv[1], err))
        return -1;
    const kvd_model_info *const m = &dump.model;
    const kvd_config config = {.n_layers = m->n_layers,
                               .n_heads = m->n_heads,
                               .n_kv_heads = m->n_kv_heads,
                               .d_head = m->d_head,
                               .d_model = m->d_model,
                               .max_positions = m->max_positions,
                               .rope_theta = m->rope_theta,
                               .positions =
                                   m->rope_theta > 0 ? KVD_POSITIONS_ROPE : KVD_POSITIONS_LEARNED};
    int status = open_method(&w, &config, err);
    if (!status) {
        status = kvd_run_start(&r, "tool_quantisers", argc, argv, &opt, err) ||
                 kvd_run_parameter(&r, "method", err, "%s", argv[3]) ||
                 kvd_run_add_input(&r, argv[1], err) ||
                 kvd_h5_create(&w.out, argv[4], &schema, &r, err) || write_all(&w, err) ||
                 kvd_h5_finish(&w.out, err);
        kvd_h5_close(&w.out, false);
        kvd_run_release(&r);
        kvd_bits_close(w.method.plan.bits, w.self);
    }
    kvd_activations_close(&dump);
    return status ? -1 : 0;
}

int main(int argc, char **argv)
{
    kvd_err err = {"no reason given"};
    return kvd_run_exit("tool_quantisers", run(argc, argv, &err), &err);
}
