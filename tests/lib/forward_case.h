/* Compares kvdim's forward pass on the CPU with a double-precision implementation and with Hugging
 * Face Transformers. */
#ifndef KVD_TESTS_FORWARD_CASE_H
#define KVD_TESTS_FORWARD_CASE_H

#include <math.h>
#include <string.h>

#include "expected.h"
#include "forward_ref.h"
#include "unit.h"

static double bar = 2e-5; /* largest relative Frobenius distance that is accepted */
static double worst;      /* largest relative Frobenius distance so far */

static inline void end_forward(void *f)
{
    kvd_forward_free(f);
}

/* Creates a forward pass for the model c, and frees it at the end of the test. */
static inline kvd_forward *open_forward(const kvd_checkpoint *c, size_t max_tokens, size_t max_len)
{
    kvd_err err = {""};
    kvd_forward *const f = kvd_forward_new(c, max_tokens, max_len, &err);
    if (!f)
        fail_msg("%s", err.msg);
    unit_at_end(end_forward, f);
    return f;
}

static inline void end_dense(void *a)
{
    kvd_dense_attention_release(a);
}

/* Returns a dense attention function for the forward pass. It is freed when the test ends. */
static inline kvd_dense_attention *dense_attention(void)
{
    kvd_dense_attention *const a = unit_alloc(sizeof *a);
    kvd_dense_attention_init(a);
    unit_at_end(end_dense, a);
    return a;
}

static inline int run(const kvd_checkpoint *checkpoint, const kvd_batch *b, int last_layer,
                      recording *to, kvd_err *err)
{
    const int status = run_cpu(checkpoint, b, last_layer, to, err);
    for (int kind = 0; kind < N_KINDS; kind++)
        unit_at_end(free, to->x[kind]);
    return status;
}

/* Returns n random token ids, freed at the end of the test. */
static inline uint32_t *token_ids(size_t n, size_t vocab, uint64_t seed)
{
    uint32_t *const id = some_ids(n, vocab, seed);
    unit_at_end(free, id);
    return id;
}

static inline void assert_error(const char *what, const char *kind, double error)
{
    worst = error > worst ? error : worst;
    if (!(error <= bar))
        fail_msg("%s: %s is off by %.3g, allowed is %.3g", what, kind, error, bar);
}

static inline void assert_near(const char *what, const char *kind, double square_error,
                               double square)
{
    assert_error(what, kind, square > 0 ? sqrt(square_error / square) : INFINITY);
}

static inline void end_checkpoint(void *c)
{
    kvd_checkpoint_close(c);
}

/* Opens a checkpoint until the end of the test. */
static inline kvd_checkpoint *open_checkpoint(const char *path)
{
    kvd_err err = {""};
    kvd_checkpoint *const checkpoint = kvd_checkpoint_open(path, &err);
    if (!checkpoint)
        fail_msg("%s", err.msg);
    unit_at_end(end_checkpoint, checkpoint);
    return checkpoint;
}

/* Opens the test model `name`, a folder of tests/data/families. */
static inline kvd_checkpoint *open_family(const char *name)
{
    char path[256];
    (void)snprintf(path, sizeof path, "tests/data/families/%s", name);
    return open_checkpoint(path);
}

static inline void compare_with_reference(const char *what, const char *path, size_t n)
{
    kvd_err err = {""};
    kvd_checkpoint *checkpoint = open_checkpoint(path);
    const kvd_config *c = kvd_checkpoint_config(checkpoint);
    uint32_t *id = token_ids(n, (size_t)c->vocab_size, 7);
    const size_t offset[2] = {0, n};
    const kvd_batch b = {.n_sequences = 1, .offset = offset, .id = id};
    recording got;
    double *want[N_KINDS];
    if (run(checkpoint, &b, -1, &got, &err))
        fail_msg("%s: %s", what, err.msg);
    assert_int_equal(got.layers, c->n_layers);
    for (int kind = 0; kind < N_KINDS; kind++) {
        const size_t layers = kind == LOGITS ? 1 : (size_t)c->n_layers;
        want[kind] = unit_alloc(layers * n * width_of(c, kind) * sizeof *want[kind]);
    }
    const forward_ref_out out = {.logits = want[LOGITS],
                                 .q_pre = want[Q_PRE],
                                 .k_pre = want[K_PRE],
                                 .q = want[Q],
                                 .k = want[K],
                                 .v = want[V],
                                 .o = want[O]};
    forward_ref(checkpoint, id, n, &out);
    for (int kind = 0; kind < N_KINDS; kind++) {
        const size_t layers = kind == LOGITS ? 1 : (size_t)c->n_layers,
                     size = n * width_of(c, kind);
        for (size_t l = 0; l < layers; l++) {
            double error = 0, square = 0;
            for (size_t i = l * size; i < (l + 1) * size; i++) {
                error += pow((double)got.x[kind][i] - want[kind][i], 2);
                square += pow(want[kind][i], 2);
            }
            assert_near(what, kind_name[kind], error, square);
        }
    }
}

static inline void compare_with_transformers(const char *model, const char *path)
{
    kvd_err err = {""};
    expectation e = {0};
    kvd_checkpoint *checkpoint = open_checkpoint(model);
    OK(expected_read(path, kvd_checkpoint_config(checkpoint), &e, &err));
    const size_t offset[2] = {0, e.n};
    const kvd_batch b = {.n_sequences = 1, .offset = offset, .id = e.id};
    recording got;
    OK(run(checkpoint, &b, -1, &got, &err));
    for (int kind = 0; kind < N_KINDS; kind++)
        for (size_t l = 0; l < expected_layers(&e, kind); l++)
            assert_error(model, kind_name[kind], expected_error(&e, got.c, kind, l, got.x[kind]));
    expected_release(&e);
}

#endif
