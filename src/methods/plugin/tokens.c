/* Adapts plugin methods that select tokens to kvd_tokens_method. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "methods/plugin/plugin_method.h"

enum { STATE_MOST = 1 << 30, WINDOW_MOST = 1 << 24 };

static const kvdim_tokens_method *api_of(const kvd_plugin_opened *o)
{
    return &o->method->api.tokens;
}

static int open(const kvd_parameter_values *v, const kvd_method_setup *s, void **self, kvd_err *err)
{
    const kvd_plugin_method *const m = kvd_plugin_of(v);
    const kvdim_tokens_method *const a = &m->api.tokens;
    if (kvd_plugin_open(v, s, a->open, a->close, self, err))
        return -1;
    const size_t rows = a->window ? a->window(v->value) : 0;
    if (rows <= WINDOW_MOST)
        return 0;
    kvd_plugin_close(*self);
    *self = NULL;
    return kvd_plugin_wrong(m, "window", err, "returned %zu rows, more than %d", rows, WINDOW_MOST);
}

static size_t window(const kvd_parameter_values *v)
{
    const size_t rows = kvd_plugin_of(v)->api.tokens.window(v->value);
    return rows < WINDOW_MOST ? rows : WINDOW_MOST;
}

/* Returns how many bytes of state the plugin asks for. If they are too many, returns 0, and a later
 * function reports the error. */
static size_t state_bytes(const void *self, size_t n)
{
    const kvd_plugin_opened *const o = self;
    const size_t bytes = api_of(o)->state_bytes(o->self, n);
    if (bytes <= STATE_MOST)
        return bytes;
    atomic_store(&kvd_plugin_flags(o->method)->bad_state, true);
    return 0;
}

static int check_state(const kvd_plugin_opened *o, kvd_err *err)
{
    return atomic_load(&o->method->bad_state)
               ? kvd_plugin_wrong(o->method, "state_bytes", err, "returned more than %d bytes",
                                  STATE_MOST)
               : 0;
}

/* Returns a new list with the indices 0 .. n - 1 and guard bytes after them, or NULL. */
static uint32_t *new_list(size_t n)
{
    uint32_t *const list = malloc(n * sizeof *list + KVD_GUARD);
    if (!list)
        return NULL;
    for (size_t i = 0; i < n; i++)
        list[i] = (uint32_t)i;
    kvd_guard_set(list, n * sizeof *list);
    return list;
}

/* Sets mark[i] to 0 for every token i that is not in `list`, and leaves other marks unchanged.
 * Fails if the list is invalid. */
static int take_list(const kvd_plugin_opened *o, const char *function, const uint32_t *list,
                     size_t some, size_t n, uint8_t *mark, kvd_err *err)
{
    const kvd_plugin_method *const m = o->method;
    if (!kvd_guard_holds(list, n * sizeof *list))
        return kvd_plugin_wrong(m, function, err, "wrote beyond its list of %zu entries", n);
    if (some < 1 || some > n)
        return kvd_plugin_wrong(m, function, err, "chose %zu of %zu entries, not 1 .. %zu", some, n,
                                n);
    for (size_t i = 0, at = 0; i < some; i++) {
        if (list[i] >= n)
            return kvd_plugin_wrong(m, function, err, "chose entry %u of %zu", (unsigned)list[i],
                                    n);
        if (i && list[i] <= list[i - 1])
            return kvd_plugin_wrong(m, function, err,
                                    "chose entry %u after entry %u: they must rise",
                                    (unsigned)list[i], (unsigned)list[i - 1]);
        for (; at < list[i]; at++)
            mark[at] = 0;
        at = list[i] + 1;
        if (i + 1 == some)
            memset(mark + at, 0, n - at);
    }
    return 0;
}

static kvdim_prompt prompt_of(const kvd_plugin_opened *o, const kvd_prompt_attention *p)
{
    const bool sums = api_of(o)->method.needs & KVDIM_NEEDS_PROBABILITIES;
    return (kvdim_prompt){.struct_size = sizeof(kvdim_prompt),
                          .layer = p->layer,
                          .kv_head = p->kv_head,
                          .group = p->group,
                          .n = p->n,
                          .n_expected = p->n_expected,
                          .d = p->d,
                          .k = p->k,
                          .v = p->v,
                          .stride = p->ld,
                          .q = p->q,
                          .q_stride = p->ldq,
                          .mass = sums ? p->mass : NULL,
                          .own = sums ? p->own : NULL,
                          .window = sums ? p->window : 0,
                          .recent = sums ? p->recent : NULL};
}

static kvdim_step step_of(const kvd_step_attention *a)
{
    return (kvdim_step){.struct_size = sizeof(kvdim_step),
                        .layer = a->layer,
                        .kv_head = a->kv_head,
                        .group = a->group,
                        .n = a->n,
                        .position = a->position,
                        .prob = a->prob,
                        .score = a->score,
                        .now = a->now,
                        .n_prompt = a->prompt,
                        .n_expected = a->n_expected};
}

static int prompt(const void *self, void *state, const kvd_prompt_attention *p, uint8_t *level,
                  kvd_err *err)
{
    const kvd_plugin_opened *const o = self;
    const kvdim_prompt in = prompt_of(o, p);
    char error[KVDIM_ERROR_BYTES] = "";
    size_t n = p->n;
    if (check_state(o, err))
        return -1;
    uint32_t *const kept = new_list(n);
    if (!kept)
        return kvd_no_memory(err, "entries of a prompt", n * sizeof *kept);
    const int status = api_of(o)->prompt(o->self, state, &in, kept, &n, error)
                           ? kvd_plugin_failed(o->method, "prompt", error, err)
                           : take_list(o, "prompt", kept, n, p->n, level, err);
    free(kept);
    return status;
}

static int step(const void *self, void *state, const kvd_step_attention *a, uint8_t *level,
                kvd_err *err)
{
    const kvd_plugin_opened *const o = self;
    const kvdim_step in = step_of(a);
    char error[KVDIM_ERROR_BYTES] = "";
    size_t n = a->n;
    if (check_state(o, err))
        return -1;
    uint32_t *const kept = new_list(n);
    if (!kept)
        return kvd_no_memory(err, "entries of a step", n * sizeof *kept);
    const int status = api_of(o)->step(o->self, state, &in, kept, &n, error)
                           ? kvd_plugin_failed(o->method, "step", error, err)
                           : take_list(o, "step", kept, n, a->n, level, err);
    free(kept);
    return status;
}

typedef struct {
    uint32_t **kept;
    size_t *n;
    union {
        kvdim_prompt *prompt;
        kvdim_step *step;
    } in;
} layer_lists;

static void release_lists(layer_lists *l, size_t n_heads)
{
    for (size_t h = 0; l->kept && h < n_heads; h++)
        free(l->kept[h]);
    free(l->kept);
    free(l->n);
    free(l->in.prompt);
}

/* Allocates a list of tokens and a callback argument of `each` bytes for each of n_heads heads. */
static int new_lists(layer_lists *l, size_t n_heads, size_t each, kvd_err *err)
{
    bool failed = false;
    l->in.prompt = malloc(n_heads * each);
    l->kept = calloc(n_heads, sizeof *l->kept);
    if (!l->n || !l->in.prompt || !l->kept)
        return kvd_no_memory(err, "heads of a layer", n_heads * each);
    for (size_t h = 0; h < n_heads; h++)
        failed = !(l->kept[h] = new_list(l->n[h])) || failed;
    return failed ? kvd_no_memory(err, "entries of a layer", n_heads * sizeof(uint32_t)) : 0;
}

static int prompt_heads(const void *self, void *const *state, const kvd_prompt_attention *p,
                        size_t n_heads, uint8_t *const *level, kvd_err *err)
{
    const kvd_plugin_opened *const o = self;
    char error[KVDIM_ERROR_BYTES] = "";
    layer_lists l = {.n = malloc(n_heads * sizeof *l.n)};
    for (size_t h = 0; l.n && h < n_heads; h++)
        l.n[h] = p[h].n;
    int status = check_state(o, err) || new_lists(&l, n_heads, sizeof *l.in.prompt, err);
    for (size_t h = 0; !status && h < n_heads; h++)
        l.in.prompt[h] = prompt_of(o, &p[h]);
    if (!status &&
        api_of(o)->prompt_heads(o->self, state, l.in.prompt, n_heads, l.kept, l.n, error))
        status = kvd_plugin_failed(o->method, "prompt_heads", error, err);
    for (size_t h = 0; !status && h < n_heads; h++)
        status = take_list(o, "prompt_heads", l.kept[h], l.n[h], p[h].n, level[h], err);
    release_lists(&l, n_heads);
    return status ? -1 : 0;
}

static int step_heads(const void *self, void *const *state, const kvd_step_attention *a,
                      size_t n_heads, uint8_t *const *level, kvd_err *err)
{
    const kvd_plugin_opened *const o = self;
    char error[KVDIM_ERROR_BYTES] = "";
    layer_lists l = {.n = malloc(n_heads * sizeof *l.n)};
    for (size_t h = 0; l.n && h < n_heads; h++)
        l.n[h] = a[h].n;
    int status = check_state(o, err) || new_lists(&l, n_heads, sizeof *l.in.step, err);
    for (size_t h = 0; !status && h < n_heads; h++)
        l.in.step[h] = step_of(&a[h]);
    if (!status && api_of(o)->step_heads(o->self, state, l.in.step, n_heads, l.kept, l.n, error))
        status = kvd_plugin_failed(o->method, "step_heads", error, err);
    for (size_t h = 0; !status && h < n_heads; h++)
        status = take_list(o, "step_heads", l.kept[h], l.n[h], a[h].n, level[h], err);
    release_lists(&l, n_heads);
    return status ? -1 : 0;
}

static int choose(const void *self, void *state, const kvd_read_choice *c, uint8_t *read,
                  kvd_err *err)
{
    const kvd_plugin_opened *const o = self;
    const kvdim_read in = {.struct_size = sizeof in,
                           .layer = c->layer,
                           .kv_head = c->kv_head,
                           .group = c->group,
                           .n = c->n,
                           .d = c->d,
                           .position = c->position,
                           .k = c->k,
                           .q = c->q,
                           .q_stride = c->ldq};
    char error[KVDIM_ERROR_BYTES] = "";
    size_t n = c->n;
    if (check_state(o, err))
        return -1;
    if (atomic_load(&o->method->bad_bits))
        return kvd_plugin_wrong(o->method, "select_bits", err,
                                "returned a number of bits that is negative or not finite");
    uint32_t *const list = new_list(n);
    if (!list)
        return kvd_no_memory(err, "entries of a step", n * sizeof *list);
    const int status = api_of(o)->select(o->self, state, &in, list, &n, error)
                           ? kvd_plugin_failed(o->method, "select", error, err)
                           : take_list(o, "select", list, n, c->n, read, err);
    free(list);
    return status;
}

/* Returns how many bits the plugin reads to choose tokens. If the plugin's number is invalid,
 * returns 0, and the next call of `select` fails. */
static double select_bits(const void *self, const void *state, const uint32_t *position, size_t n,
                          size_t d, size_t number_bits)
{
    const kvd_plugin_opened *const o = self;
    const double bits = api_of(o)->select_bits(o->self, state, n, d);
    (void)position, (void)number_bits;
    if (isfinite(bits) && bits >= 0)
        return bits;
    atomic_store(&kvd_plugin_flags(o->method)->bad_bits, true);
    return 0;
}

static int check_functions(const kvdim_tokens_method *a, kvd_err *err)
{
    if (!a->prompt && !a->prompt_heads && !a->select)
        return kvd_fail(err, "it has none of prompt, prompt_heads and select");
    if ((a->prompt && a->prompt_heads) || (a->step && a->step_heads))
        return kvd_fail(err, "it has both %s and %s_heads", a->prompt_heads ? "prompt" : "step",
                        a->prompt_heads ? "prompt" : "step");
    if ((a->step || a->step_heads) && !a->prompt && !a->prompt_heads)
        return kvd_fail(err, "it has %s, but neither prompt nor prompt_heads",
                        a->step ? "step" : "step_heads");
    if (a->select_bits && !a->select)
        return kvd_fail(err, "it has select_bits, but no select");
    if (a->close && !a->open)
        return kvd_fail(err, "it has close, but no open");
    if (a->method.needs & KVDIM_NEEDS_CALIBRATION)
        return kvd_fail(err, "KVDIM_NEEDS_CALIBRATION is for methods of the dims axis");
    if (a->window && !(a->method.needs & KVDIM_NEEDS_PROBABILITIES))
        return kvd_fail(err, "it has window, but not KVDIM_NEEDS_PROBABILITIES");
    if (!(a->entry_bits >= 0) || !isfinite(a->entry_bits))
        return kvd_fail(err, "entry_bits is %g", a->entry_bits);
    return 0;
}

int kvd_plugin_tokens(kvd_plugin_method *m, kvd_err *err)
{
    const kvdim_tokens_method *const a = &m->api.tokens;
    const bool prompts = !a->step && !a->step_heads && !a->select;
    if (check_functions(a, err))
        return -1;
    m->kind = KVD_PLUGIN_TOKENS;
    m->as.tokens = (kvd_tokens_method){.info.needs = kvd_plugin_needs(&a->method) |
                                                     (prompts ? (unsigned)KVD_NEEDS_PROMPT : 0),
                                       .entry_bits = a->entry_bits,
                                       .window = a->window ? window : NULL,
                                       .open = open,
                                       .close = kvd_plugin_close,
                                       .state_bytes = a->state_bytes ? state_bytes : NULL,
                                       .prompt = a->prompt ? prompt : NULL,
                                       .step = a->step ? step : NULL,
                                       .prompt_heads = a->prompt_heads ? prompt_heads : NULL,
                                       .step_heads = a->step_heads ? step_heads : NULL,
                                       .select = a->select ? choose : NULL,
                                       .select_bits = a->select_bits ? select_bits : NULL};
    return 0;
}
