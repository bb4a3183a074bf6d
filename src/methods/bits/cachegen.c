/* Method cachegen: in every `group` tokens, differences from the first token are quantised and
 * entropy-coded (Liu et al. 2024, CacheGen, arXiv 2310.07240, section 5.1). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "methods/bits/bits.h"
#include "methods/bits/calibration.h"
#include "methods/bits/rans.h"

enum { BIN, GROUP, GROUPS, OWN, LANES, ROWS };
static const kvd_parameter parameters[] = {
    {"bin", 1, 0.1, 8, false,
     "step of differences in the middle layers, in root mean squares of a channel's differences"},
    {"group", 10, 2, 1024, true, "tokens of a group, the first of which is its anchor"},
    {"groups", 1, 1, 1 << 16, true, "groups per block after the prompt"},
    {"own", 0, 0, 1, true,
     "1: blocks store their own steps and frequencies; 0: those of --calibration"},
    {"lanes", 0, 0, 1, true,
     "1: a block is coded as streams that 32 lanes decode at once (GPUs: groups * group = 64)"},
    {"rows", 4096, 64, 1 << 20, true, "number of calibration tokens read"},
    {NULL, 0, 0, 0, false, NULL},
};
static const kvd_idle_key idle[] = {{"rows", "own", 1, 1}, {NULL, NULL, 0, 0}};

enum { ANCHOR_BITS = 8, ZERO = KVD_CACHEGEN_ZERO, CODES = KVD_CACHEGEN_CODES };
_Static_assert(sizeof(kvd_rans_table) == KVD_STREAM_TABLE * sizeof(uint16_t), "tables of streams");

typedef struct {
    kvd_pool pool; /* must be first */
    const kvd_parameter_values *v;
    int n_layers;
    size_t n_kv_heads, wide, group;
    bool drawn;
    /* [n_layers][n_kv_heads][KVD_N_SIDES][wide] Quantisation step of each channel. NULL if blocks
     * store their own steps. */
    float *step;
    /* [n_layers][n_kv_heads][KVD_N_SIDES][1 + wide] Frequency tables of quantised numbers: one for
     * the first token of each group of tokens, then one per channel for all other tokens. NULL if
     * blocks store their own tables. */
    kvd_rans_table *table;
    /* [wide] Frequency tables of each channel. anchor: for the first token of each group of tokens.
     * difference: for all other tokens. NULL unless 32 lanes decode a block (lanes=1). */
    kvd_stream_component *anchor, *difference;
} cachegen;

static double unit_of(const cachegen *c, int layer)
{
    return c->v->value[BIN] * (0.5 + layer * 3 / c->n_layers * 0.5);
}

static size_t place(const cachegen *c, int layer, int kv_head, int side)
{
    return ((size_t)layer * c->n_kv_heads + (size_t)kv_head) * KVD_N_SIDES + (size_t)side;
}

static void read_anchor(const uint8_t *code, size_t d, float step, float zero, float *y)
{
    for (size_t j = 0; j < d; j++)
        y[j] = step * (float)code[j] + zero;
}

static uint8_t code_difference(float x, float anchor, float step)
{
    const float steps = step > 0 ? rintf((x - anchor) / step) : 0;
    return (uint8_t)(ZERO + fminf(fmaxf(steps, -ZERO), ZERO));
}

/* Compares tokens with the first token of their group, in d channels. If `count` is NULL, adds the
 * squared differences to square [d]. Else fills histograms of quantised numbers: count[0] for first
 * tokens, count[1 + j] for differences in channel j. Returns how many tokens were compared. */
static size_t read_rows(const cachegen *c, const float *rows, size_t n, size_t d, size_t seq_len,
                        const float *step, double *square, uint64_t (*count)[KVD_RANS_SYMBOLS],
                        float *y, uint8_t *code)
{
    size_t differences = 0;
    for (size_t i = 0; i < n; i++) {
        const float *const x = rows + i * d;
        float scale, zero;
        if (i % seq_len % c->group == 0) {
            kvd_quantise_codes(x, d, ANCHOR_BITS, code, &scale, &zero);
            read_anchor(code, d, scale, zero, y);
            for (size_t j = 0; count && j < d; j++)
                count[0][code[j]]++;
            continue;
        }
        differences++;
        for (size_t j = 0; j < d; j++)
            if (count)
                count[1 + j][code_difference(x[j], y[j], step[j])]++;
            else
                square[j] += ((double)x[j] - (double)y[j]) * ((double)x[j] - (double)y[j]);
    }
    return differences;
}

static void make_table(kvd_rans_table *t, uint64_t *count, size_t n)
{
    for (size_t s = 0; s < n; s++)
        count[s] = 64 * count[s] + 1;
    kvd_rans_table_make(t, count, n);
}

static void draw_table(kvd_rans_table *t, size_t n, double middle, double sigma)
{
    enum { ROWS_SEEN = 4096 };
    uint64_t count[KVD_RANS_SYMBOLS] = {0};
    for (size_t s = 0; s < n; s++) {
        const double low = ((double)s - 0.5 - middle) / (sqrt(2) * sigma),
                     high = ((double)s + 0.5 - middle) / (sqrt(2) * sigma);
        count[s] = (uint64_t)(ROWS_SEEN * (erf(high) - erf(low)) / 2);
    }
    make_table(t, count, n);
}

/* Sets quantisation steps and frequency tables without calibration data, for timing runs. Assumes
 * that all channels have variance 1. */
static int draw(cachegen *c)
{
    const size_t each = c->n_kv_heads * KVD_N_SIDES;
    for (size_t at = 0; at < (size_t)c->n_layers * each; at++) {
        const double unit = unit_of(c, (int)(at / each));
        draw_table(&c->table[at * (1 + c->wide)], KVD_RANS_SYMBOLS, 127.5, 45);
        for (size_t j = 0; j < c->wide; j++) {
            c->step[at * c->wide + j] = (float)(unit * sqrt(2));
            draw_table(&c->table[at * (1 + c->wide) + 1 + j], CODES, ZERO, 1 / unit);
        }
    }
    return 0;
}

/* Computes quantisation steps and frequency tables for K or V of one KV head from calibration
 * data. */
static int calibrate_head(cachegen *c, size_t at, const kvd_calibration_rows *r, size_t d,
                          double unit, kvd_err *err)
{
    const size_t seq_len = r->setup->calibration->seq_len;
    kvd_pool pool = {0};
    float *const step = c->step + at * c->wide, *const y = kvd_pool_new(&pool, d * sizeof *y);
    double *const square = kvd_pool_new(&pool, d * sizeof *square);
    uint64_t(*const count)[KVD_RANS_SYMBOLS] = kvd_pool_new(&pool, (1 + d) * sizeof *count);
    uint8_t *const code = kvd_pool_new(&pool, d);
    int status = kvd_pool_check(&pool, "frequencies", err);
    if (!status) {
        const size_t n = read_rows(c, r->cut, r->n, d, seq_len, NULL, square, NULL, y, code);
        if (n == 0)
            status = kvd_fail(err, "the calibration's sequences have one token each");
        for (size_t j = 0; n && j < d; j++)
            step[j] = (float)(unit * sqrt(square[j] / (double)n));
        (void)read_rows(c, r->cut, r->n, d, seq_len, step, NULL, count, y, code);
        for (size_t k = 0; n && k <= d; k++) {
            const size_t codes = k ? CODES : KVD_RANS_SYMBOLS;
            make_table(&c->table[at * (1 + c->wide) + k], count[k], codes);
        }
    }
    kvd_pool_free(&pool);
    return status;
}

static int calibrate(cachegen *c, const kvd_method_setup *s, bool pre, kvd_err *err)
{
    const size_t n = kvd_calibration_tokens(s, c->v->value[ROWS]);
    kvd_calibration_rows rows;
    int status = kvd_calibration_rows_open(&rows, s, pre, n, err);
    for (int l = 0; !status && l < c->n_layers; l++)
        for (int g = 0; !status && g < s->config->n_kv_heads; g++)
            for (int side = 0; !status && side < KVD_N_SIDES; side++) {
                size_t d;
                status = kvd_calibration_rows_read(&rows, (kvd_side)side, l, g, &d, err) ||
                         calibrate_head(c, place(c, l, g, side), &rows, d, unit_of(c, l), err);
            }
    kvd_calibration_rows_close(&rows);
    return status ? -1 : 0;
}

static bool calibrated(const kvd_parameter_values *v)
{
    return !(v->value[OWN] > 0);
}

static void window(const kvd_parameter_values *v, kvd_side side, size_t *newest, size_t *block)
{
    (void)side;
    *newest = 0;
    *block = (size_t)v->value[GROUPS] * (size_t)v->value[GROUP];
}

/* Sets c->anchor and c->difference: the positions of the two frequency tables of each channel in
 * the list of tables of K or V. */
static int place_codes(cachegen *c, kvd_err *err)
{
    c->anchor = kvd_pool_new(&c->pool, c->wide * sizeof *c->anchor);
    c->difference = kvd_pool_new(&c->pool, c->wide * sizeof *c->difference);
    if (kvd_pool_check(&c->pool, "tables", err))
        return -1;
    for (size_t j = 0; j < c->wide; j++) {
        c->anchor[j] = (kvd_stream_component){0, 0, KVD_RANS_SYMBOLS};
        c->difference[j] =
            (kvd_stream_component){(uint32_t)(1 + j) * KVD_STREAM_TABLE, -ZERO, CODES};
    }
    return 0;
}

static bool before_rope(const kvd_method_setup *s)
{
    return s->config->positions == KVD_POSITIONS_ROPE && s->dims && s->dims->rebuild;
}

static int fits(const kvd_parameter_values *v, const kvd_method_setup *s, kvd_err *err)
{
    if (!calibrated(v) && v->value[LANES] > 0)
        return kvd_fail(err, "'cachegen' with own=1 stores a table per block: use lanes=0");
    return calibrated(v) && !s->drawn ? kvd_calibration_fits(s, before_rope(s), err) : 0;
}

static int open(const kvd_parameter_values *v, const kvd_method_setup *s, void **self, kvd_err *err)
{
    const bool latent = s->dims && s->dims->rebuild, pre = before_rope(s);
    cachegen *const c = kvd_pool_open(sizeof *c);
    if (!c)
        return kvd_no_memory(err, "a method", sizeof *c);
    c->v = v;
    c->n_layers = s->config->n_layers;
    c->n_kv_heads = (size_t)s->config->n_kv_heads;
    c->wide = (size_t)s->config->d_head * (size_t)(latent ? s->dims->heads : 1);
    c->group = (size_t)v->value[GROUP];
    c->drawn = s->drawn;
    const size_t places = (size_t)c->n_layers * c->n_kv_heads * KVD_N_SIDES;
    bool failed = false;
    if (calibrated(v)) {
        c->step = kvd_pool_new(&c->pool, places * c->wide * sizeof *c->step);
        c->table = kvd_pool_new(&c->pool, places * (1 + c->wide) * sizeof *c->table);
        failed = kvd_pool_check(&c->pool, "tables", err) ||
                 (v->value[LANES] > 0 && place_codes(c, err)) ||
                 (s->drawn ? draw(c) : calibrate(c, s, pre, err));
    }
    return kvd_pool_give(c, failed, self);
}

typedef struct {
    const float *step;
    const kvd_rans_table *table;
    float *scale;
    float *own_step;
    kvd_rans_table own_table[2];
    uint16_t *context;
    uint8_t *code;
    uint8_t *stream;
} buffers;

static float *anchor_of(const cachegen *c, float *decoded, size_t i, size_t d)
{
    return decoded + (i - i % c->group) * d;
}

static void code_anchors(const cachegen *c, const kvd_bits_block *b, buffers *w, float *decoded)
{
    const size_t d = b->d;
    for (size_t i = 0; i < b->n; i += c->group) {
        float *const scale = w->scale + 2 * i;
        kvd_quantise_codes(b->x + i * d, d, ANCHOR_BITS, w->code + i * d, &scale[0], &scale[1]);
        read_anchor(w->code + i * d, d, scale[0], scale[1], decoded + i * d);
        memset(w->context + i * d, 0, d * sizeof *w->context);
    }
}

static void code_differences(const cachegen *c, const kvd_bits_block *b, buffers *w, float *decoded)
{
    const size_t d = b->d;
    for (size_t i = 0; i < b->n; i++)
        for (size_t j = 0; i % c->group && j < d; j++) {
            w->context[i * d + j] = (uint16_t)(c->step ? 1 + j : 1);
            w->code[i * d + j] =
                code_difference(b->x[i * d + j], anchor_of(c, decoded, i, d)[j], w->step[j]);
        }
}

static void set_own_steps(const cachegen *c, const kvd_bits_block *b, buffers *w, float *decoded)
{
    const size_t d = b->d, anchors = (b->n + c->group - 1) / c->group;
    for (size_t j = 0; j < d; j++) {
        double sum = 0;
        for (size_t i = 0; i < b->n; i++)
            if (i % c->group)
                sum += pow((double)b->x[i * d + j] - (double)anchor_of(c, decoded, i, d)[j], 2);
        const double mean = b->n > anchors ? sum / (double)(b->n - anchors) : 0;
        w->own_step[j] = kvd_round_f16((float)(unit_of(c, b->layer) * sqrt(mean)));
    }
    w->step = w->own_step;
}

static int set_own_tables(buffers *w, size_t size, size_t *bytes, kvd_err *err)
{
    uint8_t stored[KVD_RANS_TABLE_ROOM];
    uint64_t count[KVD_RANS_SYMBOLS] = {0}, equal[KVD_RANS_SYMBOLS];
    size_t used;
    for (size_t i = 0; i < KVD_RANS_SYMBOLS; i++)
        equal[i] = 1;
    kvd_rans_table_make(&w->own_table[0], equal, KVD_RANS_SYMBOLS);
    for (size_t i = 0; i < size; i++)
        count[w->code[i]] += w->context[i];
    kvd_rans_table_make(&w->own_table[1], count, CODES);
    *bytes = kvd_rans_table_write(&w->own_table[1], stored);
    w->table = w->own_table;
    return kvd_rans_table_read(&w->own_table[1], stored, *bytes, &used, err);
}

static void read_codes(const cachegen *c, const kvd_bits_block *b, const buffers *w, float *decoded)
{
    const size_t d = b->d;
    for (size_t i = 0; i < b->n; i++) {
        const float *const anchor = anchor_of(c, decoded, i, d);
        const uint8_t *const code = w->code + i * d;
        if (i % c->group == 0)
            read_anchor(code, d, w->scale[2 * i], w->scale[2 * i + 1], decoded + i * d);
        for (size_t j = 0; i % c->group && j < d; j++)
            decoded[i * d + j] = anchor[j] + w->step[j] * (float)(code[j] - ZERO);
    }
}

typedef struct {
    kvd_stream_block block;
    size_t n_streams;
    int32_t *q;
} lane_buffers;

static int code_lanes(const cachegen *c, const kvd_rans_table *table, uint8_t *code, size_t n,
                      size_t d, lane_buffers *w, kvd_err *err)
{
    const uint16_t *const start = (const uint16_t *)(const void *)table;
    const kvd_stream_tables anchors = {(int32_t)d, c->anchor, start},
                            differences = {(int32_t)d, c->difference, start};
    for (size_t i = 0; i < w->n_streams * KVD_LANES; i++)
        w->block.state[i] = KVD_STREAM_LEAST;
    memset(w->block.n, 0, w->n_streams * sizeof *w->block.n);
    for (size_t i = n; i-- > 0;) {
        for (size_t j = 0; j < d; j++)
            w->q[j] = code[i * d + j] - (i % c->group ? ZERO : 0);
        kvd_streams_push(i % c->group ? &differences : &anchors, w->q, &w->block);
    }
    /* Decoding lowers the number of words of each stream. It uses a copy of these numbers, so that
     * the originals remain. */
    uint32_t *const words = w->block.n, *const left = words + w->n_streams;
    memcpy(left, words, w->n_streams * sizeof *words);
    w->block.n = left;
    int status = 0;
    for (size_t i = 0; !status && i < n; i++) {
        status = kvd_streams_pop(i % c->group ? &differences : &anchors, &w->block, w->q, err);
        for (size_t j = 0; !status && j < d; j++)
            code[i * d + j] = (uint8_t)(w->q[j] + (i % c->group ? ZERO : 0));
    }
    w->block.n = words;
    for (size_t i = 0; !status && i < w->n_streams * KVD_LANES; i++)
        if (w->block.state[i] != KVD_STREAM_LEAST)
            status = kvd_fail(err, "the streams of a block do not decode what was coded");
    return status;
}

static int code_all_lanes(const cachegen *c, const kvd_bits_block *b, const kvd_rans_table *table,
                          uint8_t *code, kvd_bits_count *count, kvd_err *err)
{
    const size_t d = b->d, streams = (size_t)kvd_stream_count((int)d),
                 block = (size_t)c->v->value[GROUPS] * c->group,
                 pitch = block * KVD_STREAM_GROUPS * KVD_LANES,
                 numbers = streams * (KVD_LANES + 2) + d,
                 bytes = numbers * sizeof(uint32_t) + streams * pitch * sizeof(uint16_t);
    uint32_t *const memory = malloc(bytes);
    if (!memory)
        return kvd_no_memory(err, "a block of the cache", bytes);
    lane_buffers w = {.block = {.state = memory,
                                .word = (uint16_t *)(void *)(memory + numbers),
                                .pitch = pitch,
                                .n = memory + streams * KVD_LANES},
                      .n_streams = streams,
                      .q = (int32_t *)(void *)(memory + streams * (KVD_LANES + 2))};
    int status = 0;
    for (size_t i = 0; !status && i < b->n; i += block) {
        const size_t n = b->n - i < block ? b->n - i : block;
        status = code_lanes(c, table, code + i * d, n, d, &w, err);
        for (size_t s = 0; s < streams; s++)
            count->payload += KVD_STREAM_WORD_BITS * (double)w.block.n[s];
        count->side += (double)streams * KVD_STREAM_HEADER_BITS;
    }
    free(memory);
    return status;
}

static int code(const void *self, const kvd_bits_block *b, float *decoded, kvd_bits_count *count,
                kvd_err *err)
{
    const cachegen *const c = self;
    const size_t size = b->n * b->d, floats = 2 * b->n + b->d,
                 room = floats * sizeof(float) + 3 * size + kvd_rans_room(size),
                 at = place(c, b->layer, b->kv_head, (int)b->side);
    size_t bytes = 0, table_bytes = 0;
    int status = 0;
    float *const memory = malloc(room);
    if (!memory)
        return kvd_no_memory(err, "a block of the cache", room);
    buffers w = {.scale = memory, .own_step = memory + 2 * b->n};
    w.context = (uint16_t *)(void *)(memory + floats);
    w.code = (uint8_t *)(w.context + size);
    w.stream = w.code + size;
    code_anchors(c, b, &w, decoded);
    if (c->step) {
        w.step = c->step + at * c->wide;
        w.table = c->table + at * (1 + c->wide);
    } else {
        set_own_steps(c, b, &w, decoded);
    }
    code_differences(c, b, &w, decoded);
    if (!c->step)
        status = set_own_tables(&w, size, &table_bytes, err);
    *count = (kvd_bits_count){0, 32 * (double)((b->n + c->group - 1) / c->group)};
    if (c->anchor) {
        status = status || code_all_lanes(c, b, w.table, w.code, count, err);
    } else {
        status = status || kvd_rans_encode(w.table, w.context, w.code, size, w.stream, &bytes, err);
        memset(w.code, 0, size);
        status = status || kvd_rans_decode(w.table, w.context, w.stream, bytes, w.code, size, err);
    }
    if (!status)
        read_codes(c, b, &w, decoded);
    free(memory);
    count->payload += 8 * (double)bytes;
    count->side += c->step ? 0 : 16 * (double)b->d + 8 * (double)table_bytes;
    return status ? -1 : 0;
}

void kvd_cachegen_coder_of(const void *self, kvd_cachegen_coder *to)
{
    const cachegen *const c = self;
    *to = (kvd_cachegen_coder){.wide = c->wide,
                               .group = c->group,
                               .step = c->step,
                               .table = (const uint16_t *)(const void *)c->table,
                               .drawn = c->drawn};
}

const kvd_bits_method kvd_bits_cachegen = {
    .info = {.name = "cachegen",
             .summary = "differences to anchor tokens, coarser in later layers, entropy-coded",
             .parameter = parameters,
             .idle = idle,
             .tradeoff = &(const kvd_tradeoff){"bin", 0.1, 4, true, NULL, 0, 0},
             .gpu = &kvd_gpu_cachegen},
    .drawn = true,
    .stream = true,
    .calibrated = calibrated,
    .window = window,
    .fits = fits,
    .open = open,
    .close = kvd_pool_close,
    .code = code,
};
