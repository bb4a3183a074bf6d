/* Routed experts on the CPU: choice of experts, their outputs and gradients. */
#include "model/pass/layer.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/threads.h"
#include "model/checkpoint/streaming.h"
#include "model/pass/blocks.h"
#include "model/pass/layer_back.h"
#include "model/pass/routing.h"

enum {
    PIECE = 1024,
    /* number of tokens that a thread processes at a time in the output projection */
    BLOCK = 256,
    MATRICES = KVD_N_ALL_PARTS - KVD_PART_EXPERT_GATE,
    WEIGHTS = 2 * MATRICES,
};

/* token that uses an expert, and the factor on the expert's output */
typedef struct {
    size_t row;
    float p;
} use;

struct kvd_experts {
    const kvd_config *c;
    size_t d, experts, chosen, piece;
    /* [n_layers][n_experts][WEIGHTS] weights in the checkpoint */
    kvd_weight *part;
    float *copy;
    float *normed; /* input of the experts: [max_tokens][d_model] */
    /* [max_tokens][n_heads * d_value] values of latent attention, or NULL */
    float *values;
    float *logits;
    /* [threads][KVD_ROUTE_SCRATCH * n_experts] scratch memory to choose experts */
    double *scratch;
    size_t threads;
    /* [max_tokens][n_chosen] for each expert that a token chose: the token, and the factor on the
     * expert's output */
    use *uses;
    /* [max_tokens][n_chosen] index of each expert that a token chose */
    size_t *expert;
    /* list of all pairs (token, expert that the token chose) of a batch, sorted by expert */
    use *by_expert;
    /* Elements first[x] .. first[x + 1] - 1 of by_expert belong to expert x. */
    size_t *first;
    /* [piece][d_model] input and output of one expert for `piece` tokens */
    float *in, *out;
    float *gate, *up;
    kvd_prefetch prefetch;
    /* residual stream after attention (x1), and gradient of the experts' input (dy); both are NULL
     * before the first backward pass */
    float *x1, *dy;
    float *d_logits; /* gradient of the logits: [max_tokens][n_experts] */
    float *d_out, *d_in;
    float *d_gate, *d_hidden;
    size_t max_tokens;
};

static size_t width_of(const kvd_config *c)
{
    return (size_t)(c->d_expert > c->d_shared ? c->d_expert : c->d_shared);
}

static size_t piece_of(size_t max_tokens)
{
    return max_tokens < PIECE ? max_tokens : PIECE;
}

static size_t expert_size(const kvd_config *c)
{
    size_t sum = 0;
    for (int i = 0; i < WEIGHTS; i++) {
        size_t rows, cols;
        if (kvd_part_shape(c, (kvd_part)(KVD_PART_EXPERT_GATE + i / 2), i % 2, &rows, &cols))
            sum += rows * (cols ? cols : 1);
    }
    return sum;
}

static kvd_weight *weights_of(const kvd_experts *e, int layer, size_t expert)
{
    return e->part + ((size_t)layer * e->experts + expert) * WEIGHTS;
}

static int find(kvd_experts *e, const kvd_checkpoint *c, kvd_err *err)
{
    for (int l = 0; l < e->c->n_layers; l++)
        for (size_t x = 0; x < e->experts && kvd_config_routed(e->c, l); x++)
            for (int i = 0; i < WEIGHTS; i++)
                if (kvd_weight_find_expert(c, (kvd_part)(KVD_PART_EXPERT_GATE + i / 2), i % 2, l,
                                           (int)x, weights_of(e, l, x) + i, err))
                    return -1;
    return 0;
}

void kvd_experts_bytes(const kvd_config *c, size_t max_tokens, double *weights, double *activations)
{
    *weights = *activations = 0;
    if (c->n_experts == 0)
        return;
    const double d = c->d_model, chosen = c->n_chosen, n = (double)max_tokens;
    *weights = (double)expert_size(c) * sizeof(float);
    *activations = n * (d + c->n_experts + (double)c->n_heads * c->d_value) * sizeof(float) +
                   n * chosen * (2 * sizeof(use) + sizeof(size_t)) +
                   2 * (double)piece_of(max_tokens) * (d + (double)width_of(c)) * sizeof(float);
}

static int allocate(kvd_experts *e, size_t n, kvd_err *err)
{
    const size_t width = width_of(e->c);
    double weights, activations;
    kvd_experts_bytes(e->c, n, &weights, &activations);
    e->copy = malloc(expert_size(e->c) * sizeof *e->copy);
    e->normed = malloc(n * e->d * sizeof *e->normed);
    const size_t values = (size_t)e->c->n_heads * (size_t)e->c->d_value;
    e->values = malloc((values ? n * values : 1) * sizeof *e->values);
    e->logits = malloc(n * e->experts * sizeof *e->logits);
    e->threads = kvd_thread_count();
    e->scratch = malloc(e->threads * KVD_ROUTE_SCRATCH * e->experts * sizeof *e->scratch);
    e->uses = malloc(n * e->chosen * sizeof *e->uses);
    e->expert = malloc(n * e->chosen * sizeof *e->expert);
    e->by_expert = malloc(n * e->chosen * sizeof *e->by_expert);
    e->first = malloc((e->experts + 1) * sizeof *e->first);
    e->in = malloc(e->piece * e->d * sizeof *e->in);
    e->out = malloc(e->piece * e->d * sizeof *e->out);
    e->gate = malloc(e->piece * width * sizeof *e->gate);
    e->up = malloc(e->piece * width * sizeof *e->up);
    return e->copy && e->normed && e->values && e->logits && e->scratch && e->uses && e->expert &&
                   e->by_expert && e->first && e->in && e->out && e->gate && e->up
               ? 0
               : kvd_no_memory(err, "routed experts", (unsigned long long)(weights + activations));
}

int kvd_experts_new(const kvd_checkpoint *c, size_t max_tokens, kvd_experts **out, kvd_err *err)
{
    const kvd_config *const config = kvd_checkpoint_config(c);
    *out = NULL;
    if (config->n_experts == 0)
        return 0;
    kvd_experts *e = calloc(1, sizeof *e);
    if (!e)
        return kvd_no_memory(err, "routed experts", sizeof *e);
    e->c = config;
    e->d = (size_t)config->d_model;
    e->experts = (size_t)config->n_experts;
    e->chosen = (size_t)config->n_chosen;
    e->max_tokens = max_tokens;
    e->piece = piece_of(max_tokens);
    const size_t n = (size_t)config->n_layers * e->experts * WEIGHTS;
    e->part = calloc(n, sizeof *e->part);
    if (!e->part)
        kvd_no_memory(err, "the list of experts", n * sizeof *e->part);
    if (!e->part || find(e, c, err) || allocate(e, max_tokens, err)) {
        kvd_experts_free(e);
        return -1;
    }
    *out = e;
    return 0;
}

void kvd_experts_free(kvd_experts *e)
{
    if (!e)
        return;
    void *const buffers[] = {e->part,   e->copy,      e->values,  e->normed, e->logits, e->scratch,
                             e->uses,   e->expert,    e->first,   e->in,     e->out,    e->gate,
                             e->up,     e->by_expert, e->x1,      e->dy,     e->d_out,  e->d_in,
                             e->d_gate, e->d_hidden,  e->d_logits};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        free(buffers[i]);
    free(e);
}

/* Chooses a token's experts. An expert whose logit is NaN is never chosen. */
static void choose(const kvd_experts *e, const float *logit, const float *bias, size_t *expert,
                   use *uses)
{
    double *const scratch = e->scratch + kvd_thread_index() * KVD_ROUTE_SCRATCH * e->experts;
    if (e->c->expert_groups) {
        float factor[KVD_CONFIG_EXPERTS];
        kvd_route_groups(e->c, logit, bias, scratch, expert, factor);
        for (size_t j = 0; j < e->chosen; j++)
            uses[j].p = factor[j];
        return;
    }
    double sum = 0, of_chosen = 0, *const picked = scratch;
    float top = -INFINITY;
    size_t last = e->experts;
    for (size_t x = 0; x < e->experts; x++)
        top = logit[x] > top ? logit[x] : top;
    for (size_t x = 0; x < e->experts; x++)
        sum += exp((double)logit[x] - (double)top);
    for (size_t j = 0; j < e->chosen; j++) {
        const size_t best = kvd_route_next(logit, e->experts, last);
        last = best < e->experts ? best : 0;
        expert[j] = last;
        picked[j] = best < e->experts ? exp((double)logit[best] - (double)top) : NAN;
        of_chosen += picked[j];
    }
    for (size_t j = 0; j < e->chosen; j++)
        uses[j].p = (float)(picked[j] / (e->c->chosen_add_up ? of_chosen : sum));
}

static void route(kvd_experts *e, const kvd_layer_weights *w, size_t n)
{
    kvd_layer_project(e->normed, w, KVD_PART_ROUTER, n, e->d, e->experts, e->logits, 0);
#pragma omp parallel for schedule(static) num_threads((int)e->threads)
    for (size_t i = 0; i < n; i++)
        choose(e, e->logits + i * e->experts, w->w[KVD_PART_ROUTER_BIAS], e->expert + i * e->chosen,
               e->uses + i * e->chosen);
    memset(e->first, 0, (e->experts + 1) * sizeof *e->first);
    for (size_t i = 0; i < n * e->chosen; i++)
        e->first[e->expert[i] + 1]++;
    for (size_t x = 0; x < e->experts; x++)
        e->first[x + 1] += e->first[x];
    for (size_t i = 0; i < n * e->chosen; i++) {
        e->uses[i].row = i / e->chosen;
        e->by_expert[e->first[e->expert[i]]++] = e->uses[i];
    }
    for (size_t x = e->experts; x > 0; x--)
        e->first[x] = e->first[x - 1];
    e->first[0] = 0;
}

/* weights of one expert: gate, up and down matrix, and biases or NULL */
typedef struct {
    const float *w[MATRICES], *b[MATRICES];
    size_t width;
} block;

static void multiply(const float *x, const block *m, kvd_part part, size_t n, size_t in, size_t out,
                     float *y)
{
    const int i = (int)part - (int)KVD_PART_EXPERT_GATE;
    kvd_linear(x, m->w[i], n, in, out, y, 0);
    if (m->b[i])
        kvd_add_bias(y, m->b[i], n, out);
}

static void gate_and_up(kvd_experts *e, const block *m, const float *in, size_t n)
{
    multiply(in, m, KVD_PART_EXPERT_GATE, n, e->d, m->width, e->gate);
    multiply(in, m, KVD_PART_EXPERT_UP, n, e->d, m->width, e->up);
}

/* Computes an expert's output e->out from the products e->gate and e->up. Overwrites e->gate. */
static void rest_of_block(kvd_experts *e, const block *m, size_t n)
{
    if (e->c->expert_limit > 0)
        kvd_swiglu_clamped(e->gate, e->up, n * m->width, (float)e->c->expert_alpha,
                           (float)e->c->expert_limit);
    else
        kvd_activate(KVD_SWIGLU, e->gate, e->up, n * m->width);
    multiply(e->gate, m, KVD_PART_EXPERT_DOWN, n, m->width, e->d, e->out);
}

static void feed_forward(kvd_experts *e, const block *m, const float *in, size_t n)
{
    gate_and_up(e, m, in, n);
    rest_of_block(e, m, n);
}

static void add_scaled(float *y, const float *x, float p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] += p * x[i];
}

static void load(kvd_experts *e, const kvd_weight *part, block *m)
{
    float *to = e->copy;
    m->width = (size_t)e->c->d_expert;
    for (int i = 0; i < WEIGHTS; i++) {
        const float *x = kvd_weight_in_place(&part[i]);
        if (!x && part[i].n) {
            kvd_weight_read(&part[i], 0, part[i].n, to);
            x = to;
            to += part[i].n;
        }
        (i % 2 ? m->b : m->w)[i / 2] = x;
    }
}

static size_t uses_of(const kvd_experts *e, size_t expert)
{
    return e->first[expert + 1] - e->first[expert];
}

static void gather(kvd_experts *e, const use *list, size_t rows)
{
    for (size_t i = 0; i < rows; i++)
        memcpy(e->in + i * e->d, e->normed + list[i].row * e->d, e->d * sizeof *e->in);
}

/* Adds an expert's output, times the token's routing weight, to the token's row of x, for
 * each token that chose the expert. */
static void run_expert(kvd_experts *e, const block *m, size_t expert, const float *unused, float *x)
{
    (void)unused;
    const use *const list = e->by_expert + e->first[expert];
    const size_t n = uses_of(e, expert), d = e->d;
    for (size_t at = 0; at < n; at += e->piece) {
        const size_t rows = n - at < e->piece ? n - at : e->piece;
        gather(e, list + at, rows);
        feed_forward(e, m, e->in, rows);
        for (size_t i = 0; i < rows; i++)
            add_scaled(x + list[at + i].row * d, e->out + i * d, list[at + i].p, d);
    }
}

typedef void (*of_expert)(kvd_experts *e, const block *m, size_t expert, const float *in, float *x);

/* Calls `run` for each expert that a token chose; meanwhile another thread reads the next expert's
 * weights. */
static void run_chosen(kvd_experts *e, int layer, of_expert run, const float *in, float *x)
{
    for (size_t i = 0; i < e->experts; i++) {
        if (uses_of(e, i) == 0)
            continue;
        kvd_weight *const part = weights_of(e, layer, i);
        size_t next = i + 1;
        block m;
        kvd_prefetch_wait(&e->prefetch);
        load(e, part, &m);
        while (next < e->experts && uses_of(e, next) == 0)
            next++;
        if (next < e->experts)
            kvd_prefetch_start(&e->prefetch, weights_of(e, layer, next), WEIGHTS);
        run(e, &m, i, in, x);
        for (int k = 0; k < WEIGHTS; k++)
            kvd_tensor_drop(&part[k].tensor);
    }
    kvd_prefetch_wait(&e->prefetch);
}

static block shared_block(const kvd_experts *e, const kvd_layer_weights *w)
{
    return (block){
        .w = {w->w[KVD_PART_SHARED_GATE], w->w[KVD_PART_SHARED_UP], w->w[KVD_PART_SHARED_DOWN]},
        .width = (size_t)e->c->d_shared};
}

/* Returns the factor on the shared expert's output, or 1 if `scale` is NULL. */
static float shared_factor(const kvd_experts *e, const float *scale, const float *in)
{
    double z = 0;
    for (size_t j = 0; scale && j < e->d; j++)
        z += (double)in[j] * (double)scale[j];
    return scale ? (float)(1 / (1 + exp(-z))) : 1.0f;
}

static void run_shared(kvd_experts *e, const kvd_layer_weights *w, size_t n, float *x)
{
    const block m = shared_block(e, w);
    const float *const scale = w->w[KVD_PART_SHARED_SCALE];
    for (size_t at = 0; at < n; at += e->piece) {
        const size_t rows = n - at < e->piece ? n - at : e->piece;
        const float *const in = e->normed + at * e->d;
        feed_forward(e, &m, in, rows);
        for (size_t i = 0; i < rows; i++)
            add_scaled(x + (at + i) * e->d, e->out + i * e->d,
                       shared_factor(e, scale, in + i * e->d), e->d);
    }
}

/* Adds W_O o to the residual stream x1, and writes the normalised x1 to e->normed. */
static void add_attention(kvd_experts *e, const kvd_layer_weights *w, const float *o, size_t n,
                          float *x1)
{
    const kvd_config *const c = e->c;
    const size_t d = e->d, wide = (size_t)c->n_heads * (size_t)c->d_head,
                 values = (size_t)c->n_heads * (size_t)c->d_value;
    assert(c->order == KVD_ORDER_BEFORE && c->activation == KVD_SWIGLU);
    const int saved = kvd_blas_serial();
#pragma omp parallel for schedule(dynamic)
    for (size_t at = 0; at < n; at += BLOCK) {
        const size_t rows = n - at < BLOCK ? n - at : BLOCK;
        kvd_layer_output(c, w, o + at * wide, rows, e->values + at * values, x1 + at * d, 1);
        kvd_layer_normalise(c, x1 + at * d, w->w[KVD_PART_NORM_FFN], w->b[KVD_PART_NORM_FFN], rows,
                            e->normed + at * d);
    }
    kvd_blas_restore(saved);
}

void kvd_experts_behind_attention(kvd_experts *e, const kvd_layer_weights *w, int layer,
                                  const float *o, size_t n, float *x)
{
    add_attention(e, w, o, n, x);
    route(e, w, n);
    run_chosen(e, layer, run_expert, NULL, x);
    if (e->c->d_shared)
        run_shared(e, w, n, x);
}

static int allocate_back(kvd_experts *e, kvd_err *err)
{
    const size_t n = e->max_tokens, width = width_of(e->c);
    if (e->x1)
        return 0;
    e->dy = malloc(n * e->d * sizeof *e->dy);
    e->d_logits = malloc(n * e->experts * sizeof *e->d_logits);
    e->d_out = malloc(e->piece * e->d * sizeof *e->d_out);
    e->d_in = malloc(e->piece * e->d * sizeof *e->d_in);
    e->d_gate = malloc(e->piece * width * sizeof *e->d_gate);
    e->d_hidden = malloc(e->piece * width * sizeof *e->d_hidden);
    e->x1 = malloc(n * e->d * sizeof *e->x1);
    if (e->x1 && e->dy && e->d_logits && e->d_out && e->d_in && e->d_gate && e->d_hidden)
        return 0;
    return kvd_no_memory(err, "gradients of routed experts",
                         n * (2 * e->d + e->experts) * sizeof *e->x1);
}

static float dot(const float *x, const float *y, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)y[i];
    return (float)sum;
}

/* Computes the gradient of an expert's input, e->d_in, from e->d_out. Overwrites e->d_gate. */
static void block_back(kvd_experts *e, const block *m, size_t n)
{
    const size_t d = e->d, width = m->width;
    kvd_linear_back(e->d_out, m->w[2], n, width, d, e->d_hidden, 0);
    if (e->c->expert_limit > 0)
        kvd_swiglu_clamped_back(e->d_gate, e->up, n * width, (float)e->c->expert_alpha,
                                (float)e->c->expert_limit, e->d_hidden);
    else
        kvd_activate_back(KVD_SWIGLU, e->d_gate, e->up, n * width, e->d_hidden);
    kvd_linear_back(e->d_gate, m->w[0], n, d, width, e->d_in, 0);
    kvd_linear_back(e->d_hidden, m->w[1], n, d, width, e->d_in, 1);
}

/* Repeats an expert's forward pass, and saves the gate matrix's output for the backward pass. */
static void forward_again(kvd_experts *e, const block *m, const float *in, size_t n)
{
    gate_and_up(e, m, in, n);
    memcpy(e->d_gate, e->gate, n * m->width * sizeof *e->gate);
    rest_of_block(e, m, n);
}

/* Adds one expert's part to dy, the gradient of the experts' input. */
static void expert_back(kvd_experts *e, const block *m, size_t expert, const float *d_total,
                        float *dy)
{
    const use *const list = e->by_expert + e->first[expert];
    const size_t n = uses_of(e, expert), d = e->d;
    for (size_t at = 0; at < n; at += e->piece) {
        const size_t rows = n - at < e->piece ? n - at : e->piece;
        gather(e, list + at, rows);
        forward_again(e, m, e->in, rows);
        for (size_t i = 0; i < rows; i++) {
            const use u = list[at + i];
            e->d_logits[u.row * e->experts + expert] = dot(e->out + i * d, d_total + u.row * d, d);
            for (size_t j = 0; j < d; j++)
                e->d_out[i * d + j] = u.p * d_total[u.row * d + j];
        }
        block_back(e, m, rows);
        for (size_t i = 0; i < rows; i++)
            add_scaled(dy + list[at + i].row * d, e->d_in + i * d, 1, d);
    }
}

/* Adds the shared expert's part to dy, the gradient of the experts' input. */
static void shared_back(kvd_experts *e, const kvd_layer_weights *w, size_t n, const float *d_total,
                        float *dy)
{
    const block m = shared_block(e, w);
    const float *const scale = w->w[KVD_PART_SHARED_SCALE];
    const size_t d = e->d;
    for (size_t at = 0; at < n; at += e->piece) {
        const size_t rows = n - at < e->piece ? n - at : e->piece;
        forward_again(e, &m, e->normed + at * d, rows);
        for (size_t i = 0; i < rows; i++) {
            const float *const total = d_total + (at + i) * d;
            const float s = shared_factor(e, scale, e->normed + (at + i) * d);
            if (scale)
                add_scaled(dy + (at + i) * d, scale, s * (1 - s) * dot(e->out + i * d, total, d),
                           d);
            for (size_t j = 0; j < d; j++)
                e->d_out[i * d + j] = s * total[j];
        }
        block_back(e, &m, rows);
        add_scaled(dy + at * d, e->d_in, 1, rows * d);
    }
}

/* Backward pass of routing for one token. On entry, d_logit has the gradient of the factor on each
 * chosen expert's output. On return, it has the gradient of each router logit. */
static void factors_back(const kvd_experts *e, const float *logit, const size_t *expert,
                         const use *uses, float *d_logit)
{
    double mean = 0, top = -INFINITY, sum = 0;
    for (size_t j = 0; j < e->chosen; j++)
        mean += (double)uses[j].p * (double)d_logit[expert[j]];
    if (e->c->route_sigmoid) {
        const double common = e->c->chosen_add_up ? mean / e->c->expert_scale : 0;
        for (size_t j = 0; j < e->chosen; j++) {
            const double score = 1 / (1 + exp(-(double)logit[expert[j]]));
            d_logit[expert[j]] =
                (float)((double)uses[j].p * (1 - score) * ((double)d_logit[expert[j]] - common));
        }
        return;
    }
    if (e->c->chosen_add_up) {
        for (size_t j = 0; j < e->chosen; j++)
            d_logit[expert[j]] = (float)((double)uses[j].p * ((double)d_logit[expert[j]] - mean));
        return;
    }
    for (size_t x = 0; x < e->experts; x++)
        top = fmax(top, (double)logit[x]);
    for (size_t x = 0; x < e->experts; x++)
        sum += exp((double)logit[x] - top);
    for (size_t x = 0; x < e->experts; x++)
        d_logit[x] = (float)(exp((double)logit[x] - top) / sum * ((double)d_logit[x] - mean));
}

int kvd_experts_behind_back(kvd_experts *e, const kvd_layer_weights *w, int layer, const float *x,
                            const float *o, size_t n, float *dx, float *d_o, kvd_err *err)
{
    const size_t d = e->d, wide = (size_t)e->c->n_heads * (size_t)e->c->d_head;
    if (allocate_back(e, err))
        return -1;
    memcpy(e->x1, x, n * d * sizeof *x);
    add_attention(e, w, o, n, e->x1);
    route(e, w, n);
    memset(e->dy, 0, n * d * sizeof *e->dy);
    memset(e->d_logits, 0, n * e->experts * sizeof *e->d_logits);
    run_chosen(e, layer, expert_back, dx, e->dy);
    if (e->c->d_shared)
        shared_back(e, w, n, dx, e->dy);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++)
        factors_back(e, e->logits + i * e->experts, e->expert + i * e->chosen,
                     e->uses + i * e->chosen, e->d_logits + i * e->experts);
    kvd_linear_back(e->d_logits, w->w[KVD_PART_ROUTER], n, d, e->experts, e->dy, 1);
    kvd_layer_normalise_back(e->c, e->x1, w->w[KVD_PART_NORM_FFN], n, e->dy, dx);
    kvd_linear_back(dx, w->w[KVD_PART_O], n, wide, d, d_o, 0);
    return 0;
}
