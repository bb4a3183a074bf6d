/* Compares the CPU's forward pass with double precision and with Transformers. */
#ifndef KVD_TESTS_FORWARD_CASE_H
#define KVD_TESTS_FORWARD_CASE_H

#include <math.h>
#include <string.h>

#include "expected.h"
#include "unit.h"

static double bar = 2e-5; /* largest relative Frobenius distance that is accepted */
static double worst;      /* largest relative Frobenius distance so far */

static inline int run(const kvd_checkpoint *checkpoint, const kvd_batch *b, int last_layer,
                      recording *to, kvd_err *err)
{
    return run_cpu(checkpoint, b, last_layer, to, err);
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

static inline kvd_checkpoint *open_checkpoint(const char *path)
{
    kvd_err err = {""};
    kvd_checkpoint *const checkpoint = kvd_checkpoint_open(path, &err);
    if (!checkpoint)
        fail_msg("%s", err.msg);
    return checkpoint;
}

/* Opens the model of tests/data/families that has this name. */
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
    uint32_t *id = some_ids(n, (size_t)c->vocab_size, 7);
    const size_t offset[2] = {0, n};
    const kvd_batch b = {.n_sequences = 1, .offset = offset, .id = id};
    recording got;
    double *want[N_KINDS];
    if (run(checkpoint, &b, -1, &got, &err))
        fail_msg("%s: %s", what, err.msg);
    assert_int_equal(got.layers, c->n_layers);
    for (int kind = 0; kind < N_KINDS; kind++) {
        const size_t layers = kind == LOGITS ? 1 : (size_t)c->n_layers;
        want[kind] = malloc(layers * n * width_of(c, kind) * sizeof *want[kind]);
        assert_non_null(want[kind]);
    }
    const kvd_forward_ref_out out = {.logits = want[LOGITS],
                                     .q_pre = want[Q_PRE],
                                     .k_pre = want[K_PRE],
                                     .q = want[Q],
                                     .k = want[K],
                                     .v = want[V],
                                     .o = want[O]};
    if (kvd_forward_ref(checkpoint, id, n, &out, &err))
        fail_msg("%s: %s", what, err.msg);
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
        free(want[kind]);
    }
    recording_release(&got);
    free(id);
    kvd_checkpoint_close(checkpoint);
}

static inline void compare_with_transformers(const char *model, const char *path)
{
    kvd_err err = {""};
    expectation e = {0};
    kvd_checkpoint *checkpoint = open_checkpoint(model);
    if (expected_read(path, kvd_checkpoint_config(checkpoint), &e, &err))
        fail_msg("%s", err.msg);
    const size_t offset[2] = {0, e.n};
    const kvd_batch b = {.n_sequences = 1, .offset = offset, .id = e.id};
    recording got;
    if (run(checkpoint, &b, -1, &got, &err))
        fail_msg("%s", err.msg);
    for (int kind = 0; kind < N_KINDS; kind++)
        for (size_t l = 0; l < expected_layers(&e, kind); l++)
            assert_error(model, kind_name[kind], expected_error(&e, got.c, kind, l, got.x[kind]));
    recording_release(&got);
    expected_release(&e);
    kvd_checkpoint_close(checkpoint);
}

#endif
