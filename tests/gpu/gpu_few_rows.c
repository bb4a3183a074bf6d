/* Tests matrix products with 1 to 8 tokens against products in double precision. */
#include <math.h>

#include "common/quantise.h"
#include "engine/cuda/few_rows.h"
#include "engine/cuda/small.h"
#include "engine/engine.h"
#include "gpu_case.h"
#include "make_checkpoint.h"
#include "temp_folder.h"

typedef struct {
    kvd_few_kind kind;
    size_t n, in, out;
    int norm;
    bool codes; /* weights of 4 bits */
} scenario;

static int is_gated(kvd_few_kind kind)
{
    return kind == KVD_FEW_SWIGLU || kind == KVD_FEW_GEGLU_TANH;
}

/* Replaces w [rows][in] by the values that remain after quantisation to 4 bits. */
static void quantise(float *w, size_t rows, size_t in)
{
    for (size_t at = 0; at < rows * in; at += KVD_FEW_UNIT)
        (void)kvd_quantise_group(w + at, KVD_FEW_UNIT, 1, 4, w + at);
}

/* Quantises w to 4 bits on the device, and replaces w by the dequantised weights. */
static kvd_few_codes pack(const scenario *c, float *w, size_t rows, const void *device)
{
    const bool gated = is_gated(c->kind);
    const size_t n = rows * c->in;
    size_t sides, wrong = 0;
    const size_t bytes = kvd_few_codes_bytes(rows, c->in, &sides);
    const kvd_few_codes codes = {on_device(NULL, bytes), on_device(NULL, sides)};
    void *const again = on_device(NULL, n * 2);
    uint16_t *const want = need(n * sizeof *want);
    check(kvd_few_codes_pack(device, rows, c->in, gated, &codes, NULL), "pack");
    check(kvd_few_codes_restore(&codes, rows, c->in, gated, again, NULL), "restore");
    uint16_t *const got = from_device(again, n * sizeof *got);
    quantise(w, rows, c->in);
    kvd_from_f32(KVD_BF16, w, want, n);
    for (size_t i = 0; i < n; i++)
        wrong += want[i] != got[i];
    test_result(!wrong, "codes", "%zu of %zu weights of 4 bits differ from the CPU's", wrong, n);
    device_free(again);
    host_free(want, got);
    return codes;
}

static void norm_row(const float *x, const float *gain, size_t in, double eps, double *to)
{
    double s = 0;
    for (size_t i = 0; i < in; i++)
        s += (double)x[i] * (double)x[i];
    for (size_t i = 0; i < in; i++)
        to[i] = (double)x[i] * (double)gain[i] / sqrt(s / (double)in + eps);
}

static double dot(const float *w, const double *x, size_t in)
{
    double s = 0;
    for (size_t i = 0; i < in; i++)
        s += (double)w[i] * x[i];
    return s;
}

static double activation(kvd_few_kind kind, double x)
{
    return kind == KVD_FEW_SWIGLU
               ? x / (1 + exp(-x))
               : x / 2 * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
}

static double distance(const scenario *c, const float *w, const double *x, const float *before,
                       const float *got)
{
    double error = 0, square = 0;
    for (size_t r = 0; r < c->n; r++)
        for (size_t o = 0; o < c->out; o++) {
            double y = dot(w + o * c->in, x + r * c->in, c->in);
            if (is_gated(c->kind))
                y = activation(c->kind, y) * dot(w + (c->out + o) * c->in, x + r * c->in, c->in);
            if (c->kind == KVD_FEW_ADD)
                y += (double)before[r * c->out + o];
            error += (y - (double)got[r * c->out + o]) * (y - (double)got[r * c->out + o]);
            square += y * y;
        }
    return sqrt(error / square);
}

static void test(const scenario *c)
{
    static const char *const name[] = {"store", "add", "put", "swiglu", "geglu_tanh", "logits"};
    /* true for kernels that round intermediate numbers to bf16 several times */
    const int narrow = c->kind == KVD_FEW_STORE || is_gated(c->kind);
    const double bar = narrow || c->norm ? 6e-3 : c->codes ? 2e-5 : 2e-6;
    const size_t rows = is_gated(c->kind) ? 2 * c->out : c->out, n_y = c->n * c->out;
    kvd_rng r;
    kvd_rng_seed(&r, 7, c->in + c->out);
    float *w = bf16_numbers(&r, rows * c->in, 1 / sqrt((double)c->in)),
          *x = bf16_numbers(&r, c->n * c->in, 3);
    float *gain = bf16_numbers(&r, c->in, 1), *before = bf16_numbers(&r, n_y, 1),
          *got = need(n_y * sizeof *got);
    double *in = need(c->n * c->in * sizeof *in);
    const kvd_gpu_bad none = ~0ULL;
    kvd_gpu_bad *bad = on_device(&none, sizeof none), found;
    unsigned long long *began = on_device(NULL, sizeof *began), stamp;
    void *y = on_device(c->kind == KVD_FEW_ADD ? before : NULL, n_y * (narrow ? 2 : 4));
    kvd_few_rows p = {.kind = c->kind, .n = c->n, .in = c->in, .out = c->out, .y = y, .eps = 1e-5};
    p.stage = 5;
    p.bad = bad;
    p.began = began;
    void *const w_device = on_device_bf16(w, rows * c->in), *const x16 =
                                                                on_device_bf16(x, c->n * c->in);
    float *const x32 = on_device(x, c->n * c->in * sizeof *x), *const gain32 = on_device(
                                                                   gain, c->in * sizeof *gain);
    p.w = w_device;
    if (c->codes) {
        p.codes = pack(c, w, rows, w_device);
        p.w = NULL;
    }
    p.x = c->norm ? NULL : x16;
    p.residual = x32;
    p.gain = gain32;
    for (size_t i = 0; i < c->n; i++) {
        norm_row(x + i * c->in, gain, c->in, p.eps, in + i * c->in);
        for (size_t j = 0; j < c->in && !c->norm; j++)
            in[i * c->in + j] = (double)x[i * c->in + j];
    }
    check(kvd_few_rows_run(&p, NULL), "kvd_few_rows_run");
    to_host(&found, bad, sizeof found);
    to_host(&stamp, began, sizeof stamp);
    if (narrow) {
        uint16_t *const bits = from_device(y, n_y * sizeof(uint16_t));
        kvd_to_f32(KVD_BF16, bits, got, n_y);
        free(bits);
    } else {
        to_host(got, y, n_y * sizeof *got);
    }
    const double e = distance(c, w, in, before, got);
    test_result(e <= bar && found == none && stamp != ~0ULL, name[c->kind],
                "%zu x %zu -> %zu%s%s off by %.2g of %.0e", c->n, c->in, c->out,
                c->norm ? ", normed," : "", c->codes ? ", 4 bits," : "", e, bar);
    if (c->norm) {
        const float infinite = INFINITY;
        to_device(x32 + c->n * c->in - 1, &infinite, sizeof infinite);
        check(kvd_few_rows_run(&p, NULL), "kvd_few_rows_run");
        to_host(&found, bad, sizeof found);
        test_result(found == kvd_gpu_bad_at(5, c->n - 1), name[c->kind],
                    "a row that is not finite");
    }
    device_free(bad, began, y, w_device, x16, x32, gain32, p.codes.codes, p.codes.sides);
    host_free(w, x, gain, before, got, in);
}

static void test_largest(void)
{
    enum { ROWS = 3, WIDTH = 70001 };
    static float x[ROWS][WIDTH];
    static const uint32_t want[ROWS] = {0, 69999, 4097};
    unsigned long long key[ROWS];
    const kvd_gpu_bad none = ~0ULL;
    kvd_gpu_bad *const bad = on_device(&none, sizeof none), found;
    int ok = 1;
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < WIDTH; i++)
            x[r][i] = r == 0 ? -2.0f : -3.0f - (float)(i % 977);
    x[1][69999] = 0.0f;
    x[2][4097] = x[2][4098] = x[2][70000] = -1e-3f;
    float *const device = on_device(x, sizeof x);
    unsigned long long *const keys = on_device(NULL, sizeof key);
    fill_bytes(keys, 0, sizeof key);
    check(kvd_largest(device, ROWS, WIDTH, keys, 3, bad, NULL), "kvd_largest");
    to_host(key, keys, sizeof key);
    for (int r = 0; r < ROWS; r++)
        ok = ok && kvd_largest_index(key[r]) == want[r];
    to_host(&found, bad, sizeof found);
    test_result(ok && found == none, "largest", "the first of equals");
    const float infinite = -INFINITY;
    to_device(device + WIDTH + 3, &infinite, sizeof infinite);
    check(kvd_largest(device, ROWS, WIDTH, keys, 3, bad, NULL), "kvd_largest");
    to_host(&found, bad, sizeof found);
    test_result(found == kvd_gpu_bad_at(3, 1), "largest", "a row that is not finite");
    device_free(bad, device, keys);
}

enum { REQUESTS = 2, MOST_TOKENS = 64 };

typedef struct {
    float *logits; /* [REQUESTS][vocab] */
    kvd_engine *engine;
} runner;

static int step(runner *r, const kvd_iteration *it, const uint32_t *id, size_t vocab, kvd_err *err)
{
    uint32_t next[REQUESTS];
    if (r->engine->step(r->engine, it, id, next, NULL, err))
        return -1;
    for (size_t i = 0; i < it->n_slices; i++)
        if (r->engine->logits(r->engine, i, r->logits + i * vocab, err))
            return -1;
    return 0;
}

/* Compares logits of two models: one has 4-bit weights, one has the same weights decoded to 16
 * bits. *same: true if the prompts' logits are equal bit for bit. *most: largest relative distance
 * of decode steps' logits. */
static int compare(runner *r, size_t vocab, bool *same, double *most, kvd_err *err)
{
    static const uint32_t length[REQUESTS] = {40, 17};
    uint32_t id[MOST_TOKENS];
    for (uint32_t i = 0; i < MOST_TOKENS; i++)
        id[i] = i * 7 % (uint32_t)vocab;
    for (uint32_t t = 0; t < 6; t++) {
        kvd_slice slice[REQUESTS];
        for (uint32_t i = 0; i < REQUESTS; i++)
            slice[i] = (kvd_slice){.request = i,
                                   .slot = i,
                                   .before = t ? length[i] + t - 1 : 0,
                                   .n = t ? 1 : length[i],
                                   .emits = 1};
        const kvd_iteration it = {.n_slices = REQUESTS,
                                  .n_steps = t ? REQUESTS : 0,
                                  .slice = slice,
                                  .n_tokens = t ? REQUESTS : length[0] + length[1]};
        if (step(&r[0], &it, id + t, vocab, err) || step(&r[1], &it, id + t, vocab, err))
            return -1;
        double off = 0, square = 0;
        for (size_t i = 0; i < REQUESTS * vocab; i++) {
            const double d = (double)r[0].logits[i] - (double)r[1].logits[i];
            off += d * d;
            square += (double)r[1].logits[i] * (double)r[1].logits[i];
        }
        *most = t ? fmax(*most, sqrt(off / square)) : *most;
        *same = t ? *same : !memcmp(r[0].logits, r[1].logits, REQUESTS * vocab * sizeof(float));
    }
    return 0;
}

static void test_engine(bool graphs)
{
    kvd_err err = {""};
    made_spec s = MADE_SPEC_DEFAULTS;
    char path[256];
    s.d_model = 256;
    s.heads = 4;
    s.kv_heads = 2;
    s.d_head = 64;
    s.ffn = 384;
    s.dtype = KVD_BF16;
    (void)snprintf(path, sizeof path, "%s/codes%d", temp_folder(), graphs);
    const kvd_plan plan = {.type = KVD_BF16};
    kvd_engine_spec spec = {.limits = {.max_batch = REQUESTS, .max_tokens = MOST_TOKENS},
                            .max_len = MOST_TOKENS,
                            .type = KVD_BF16,
                            .n_gpus = 1,
                            .graphs = graphs};
    kvd_checkpoint *c[2] = {NULL, NULL};
    runner r[2] = {{NULL, NULL}, {NULL, NULL}};
    bool same = false, named = false;
    double most = 0;
    int status = make_checkpoint(path, &s, &err);
    for (int i = 0; i < 2 && !status; i++) {
        status = !(c[i] = kvd_checkpoint_open(path, &err));
        if (status)
            break;
        if (i)
            kvd_checkpoint_quantise(c[i], 4, KVD_FEW_UNIT);
        spec.weight_bits = i ? 0 : 4;
        r[i].logits =
            need(REQUESTS * (size_t)kvd_checkpoint_config(c[i])->vocab_size * sizeof(float));
        status = !(r[i].engine = kvd_engine_open_cuda(c[i], &plan, &spec, &err));
    }
    if (!status) {
        named = strstr(r[0].engine->facts.what, "weights of 4 bits") != NULL;
        status = compare(r, (size_t)kvd_checkpoint_config(c[0])->vocab_size, &same, &most, &err);
    }
    test_after(status, &err, same && named && most < 2e-2, graphs ? "engine, graphs" : "engine",
               "prompts give %s bits, logits of steps off by %.2g of 2e-2, %.0f and %.0f bytes of "
               "weights",
               same ? "the same" : "other", most, r[0].engine->facts.weight_bytes,
               r[1].engine->facts.weight_bytes);
    for (int i = 0; i < 2; i++) {
        if (r[i].engine)
            r[i].engine->free(r[i].engine);
        free(r[i].logits);
        if (c[i])
            kvd_checkpoint_close(c[i]);
    }
}

int main(void)
{
    if (!gpu_devices("few_rows", 1))
        return 0;
    static const size_t in[] = {8, 40, 64, 200, 576, 2048}, out[] = {1, 8, 40, 257, 3000},
                        units[] = {128, 384, 1152, 4096};
    for (int kind = 0; kind <= KVD_FEW_LOGITS; kind++)
        for (size_t n = 1; n <= KVD_FEW_ROWS; n++) {
            const size_t i = (n + (size_t)kind) % 6, o = (n * 2 + (size_t)kind) % 5;
            const int norm = n % 2 == 1 && kind != KVD_FEW_ADD && kind != KVD_FEW_PUT;
            test(&(scenario){(kvd_few_kind)kind, n, in[i], out[o], norm, false});
            test(&(scenario){(kvd_few_kind)kind, n, units[(n + (size_t)kind) % 4], out[o], norm,
                             true});
        }
    const scenario wide[] = {
        {KVD_FEW_ADD, 3, 14336, 512, 0, false},      {KVD_FEW_STORE, 8, 4096, 300, 1, false},
        {KVD_FEW_ADD, 8, 14344, 120, 0, false},      {KVD_FEW_PUT, 8, 14344, 120, 0, false},
        {KVD_FEW_ADD, 1, 14336, 4096, 0, true},      {KVD_FEW_ADD, 8, 14336, 120, 0, true},
        {KVD_FEW_PUT, 8, 28672, 40, 0, true},        {KVD_FEW_SWIGLU, 1, 4096, 3000, 1, true},
        {KVD_FEW_GEGLU_TANH, 2, 3840, 300, 0, false}};
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        test(&wide[i]);
    test_result(!kvd_few_rows_take(KVD_FEW_ADD, 9, 64) &&
                    !kvd_few_rows_take(KVD_FEW_STORE, 8, 1 << 15) &&
                    !kvd_few_rows_take(KVD_FEW_ADD, 1, 12),
                "take", "what does not go");
    test_largest();
    test_engine(false);
    test_engine(true);
    return failures ? 1 : 0;
}
