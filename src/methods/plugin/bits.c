/* Adapts plugins of the bits axis (include/kvdim/plugin_bits.h) to kvd_bits_method. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "methods/plugin/plugin_method.h"

enum { WINDOW_MOST = 1 << 24, BLOCK_MOST = 1 << 20 };

/* Self of the vtable: the method, and the self of the plugin's functions. */
typedef struct {
    const kvd_plugin_method *method;
    const void *self;
    void *own; /* pointer that the plugin's `open` stored */
} opened;

/*
 * Asks the plugin for its window, and returns true if it is in range. Otherwise sets a window that
 * is.
 */
static bool ask_window(const kvd_parameter_values *v, kvd_side side, size_t *newest, size_t *block)
{
    const kvdim_bits_method *const a = &kvd_plugin_of(v)->api.bits;
    *newest = 0;
    *block = 1;
    if (a->window)
        a->window(v->value, side == KVD_KEYS ? KVDIM_SIDE_KEYS : KVDIM_SIDE_VALUES, newest, block);
    if (*newest <= WINDOW_MOST && *block >= 1 && *block <= BLOCK_MOST)
        return true;
    *newest = 0;
    *block = 1;
    return false;
}

/* A window that is in range at `open` and not later is reported by the next `code`. */
static void window(const kvd_parameter_values *v, kvd_side side, size_t *newest, size_t *block)
{
    if (!ask_window(v, side, newest, block))
        atomic_store(&kvd_plugin_flags(kvd_plugin_of(v))->bad_window, true);
}

static int wrong_window(const kvd_plugin_method *m, kvd_err *err)
{
    return kvd_plugin_wrong(m, "window", err,
                            "did not set a window of 0 .. %d and a block of 1 .. %d", WINDOW_MOST,
                            BLOCK_MOST);
}

static void close(void *self)
{
    opened *const o = self;
    if (o->method->api.bits.close)
        o->method->api.bits.close(o->own);
    free(o);
}

static int open(const kvd_parameter_values *v, const kvd_method_setup *s, void **self, kvd_err *err)
{
    const kvd_plugin_method *const m = kvd_plugin_of(v);
    const kvdim_bits_method *const a = &m->api.bits;
    const kvdim_model model = kvd_plugin_model(s->config, s->seed);
    char error[KVDIM_ERROR_BYTES] = "";
    size_t newest, block;
    opened *const o = calloc(1, sizeof *o);
    if (!o)
        return kvd_no_memory(err, "a method", sizeof *o);
    *o = (opened){.method = m, .self = v->value};
    if (a->open && a->open(v->value, &model, &o->own, error)) {
        free(o);
        return kvd_plugin_failed(m, "open", error, err);
    }
    if (a->open)
        o->self = o->own;
    for (int side = 0; side < KVD_N_SIDES; side++)
        if (!ask_window(v, (kvd_side)side, &newest, &block)) {
            close(o);
            return wrong_window(m, err);
        }
    *self = o;
    return 0;
}

static int check_code(const opened *o, const kvd_bits_block *b, const float *decoded,
                      const kvd_bits_count *count, kvd_err *err)
{
    const kvd_plugin_method *const m = o->method;
    if (!kvd_guard_holds(decoded, b->n * b->d * sizeof *decoded))
        return kvd_plugin_wrong(m, "code", err, "wrote beyond its %zu x %zu numbers", b->n, b->d);
    if (!isfinite(count->payload) || !isfinite(count->side) || count->payload < 0 ||
        count->side < 0)
        return kvd_plugin_wrong(m, "code", err,
                                "counted %g bits of payload and %g of side information: each must "
                                "be finite and at least 0",
                                count->payload, count->side);
    for (size_t i = 0; i < b->n * b->d; i++)
        if (!isfinite(decoded[i]))
            return kvd_plugin_wrong(m, "code", err,
                                    "decoded dimension %zu of the %s at position %u to %g",
                                    i % b->d, b->side == KVD_KEYS ? "key" : "value",
                                    (unsigned)b->position[i / b->d], (double)decoded[i]);
    return 0;
}

static int code(const void *self, const kvd_bits_block *b, float *decoded, kvd_bits_count *count,
                kvd_err *err)
{
    const opened *const o = self;
    const bool sums = o->method->api.method.needs & KVDIM_NEEDS_PROBABILITIES;
    const kvdim_block in = {.struct_size = sizeof in,
                            .side = b->side == KVD_KEYS ? KVDIM_SIDE_KEYS : KVDIM_SIDE_VALUES,
                            .layer = b->layer,
                            .kv_head = b->kv_head,
                            .prompt = b->prompt,
                            .n = b->n,
                            .d = b->d,
                            .x = b->x,
                            .position = b->position,
                            .mass = sums ? b->mass : NULL,
                            .seen = sums ? b->seen : NULL};
    const size_t bytes = b->n * b->d * sizeof *decoded;
    char error[KVDIM_ERROR_BYTES] = "";
    if (atomic_load(&o->method->bad_window))
        return wrong_window(o->method, err);
    float *const y = malloc(bytes + KVD_GUARD);
    if (!y)
        return kvd_no_memory(err, "a decoded block", bytes);
    /* Numbers that the plugin does not write are found as not finite. */
    memset(y, 0xFF, bytes);
    kvd_guard_set(y, bytes);
    *count = (kvd_bits_count){NAN, 0};
    const int status =
        o->method->api.bits.code(o->self, &in, y, &count->payload, &count->side, error)
            ? kvd_plugin_failed(o->method, "code", error, err)
            : check_code(o, b, y, count, err);
    if (!status)
        memcpy(decoded, y, bytes);
    free(y);
    return status;
}

int kvd_plugin_bits(kvd_plugin_method *m, kvd_err *err)
{
    const kvdim_bits_method *const a = &m->api.bits;
    if (!a->code)
        return kvd_fail(err, "it has no function 'code'");
    if (a->close && !a->open)
        return kvd_fail(err, "it has close, but no open");
    if (a->method.needs & KVDIM_NEEDS_CALIBRATION)
        return kvd_fail(err, "KVDIM_NEEDS_CALIBRATION is for methods of the dims axis");
    m->kind = KVD_PLUGIN_BITS;
    m->as.bits = (kvd_bits_method){
        .info.needs =
            (a->method.needs & KVDIM_NEEDS_PROBABILITIES ? (unsigned)KVD_NEEDS_PROBABILITIES : 0) |
            (a->keys_before_rope ? (unsigned)KVD_NEEDS_PRE_ROPE : 0),
        .keys_before_rope = a->keys_before_rope != 0,
        .window = a->window ? window : NULL,
        .open = open,
        .close = close,
        .code = code};
    return 0;
}
