/* usage: tool_palu DUMP.h5 METHOD OUT.h5 [FISHER.h5]      METHOD: "palu,p=0.5,heads=2"
 *
 * Writes the matrices A and B_h of method palu for tests/oracle/public_palu.py. The method stores
 * x A, where x is K or V of some heads; x A B_h is head h. DUMP.h5: Q, K and V to calibrate with.
 * FISHER.h5: gradients, if METHOD has search=1 or 2.
 *
 * /rank [layer][kv_head][K or V]                              columns of A
 * /product [layer][kv_head][K or V][heads * d_head][d_head]   A B_h */
#include <stdlib.h>
#include <string.h>

#include "formats/activations.h"
#include "formats/fisher.h"
#include "methods/method.h"

static const kvd_schema schema = {"latents", 1, "Products of the two factors of method palu."};

static void multiply(const float *a, const float *b, size_t wide, size_t r, size_t d, double *y)
{
    for (size_t i = 0; i < wide; i++)
        for (size_t j = 0; j < d; j++) {
            double sum = 0;
            for (size_t k = 0; k < r; k++)
                sum += (double)a[i * r + k] * (double)b[k * d + j];
            y[i * d + j] = sum;
        }
}

static int write_latents(kvd_h5 *f, const kvd_dims *d, kvd_err *err)
{
    const size_t n = (size_t)d->n_layers * (size_t)d->n_kv_heads, width = (size_t)d->d_head,
                 wide = (size_t)d->heads * width;
    double *const product = malloc(n * KVD_N_SIDES * wide * width * sizeof *product);
    int64_t *const rank = malloc(n * KVD_N_SIDES * sizeof *rank);
    int rc =
        product && rank ? 0 : kvd_no_memory(err, "products", n * wide * width * sizeof *product);
    for (size_t i = 0; !rc && i < n; i++)
        for (size_t side = 0; side < KVD_N_SIDES; side++) {
            const kvd_dims_head *const h = &d->head[i];
            const int r = side == KVD_KEYS ? h->d_qk : h->d_v;
            rank[i * KVD_N_SIDES + side] = r;
            multiply(side == KVD_KEYS ? h->a_k : h->a_v, side == KVD_KEYS ? h->b_k : h->b_v, wide,
                     (size_t)r, width, product + (i * KVD_N_SIDES + side) * wide * width);
        }
    const kvd_h5_spec of_rank = {"/rank",
                                 "Width of the latent.",
                                 "1",
                                 H5T_STD_I64LE,
                                 3,
                                 {(hsize_t)d->n_layers, (hsize_t)d->n_kv_heads, KVD_N_SIDES},
                                 {"layer", "kv_head", "side"}};
    const kvd_h5_spec of_product = {
        "/product",
        "A B of one head.",
        "1",
        H5T_IEEE_F64LE,
        5,
        {(hsize_t)d->n_layers, (hsize_t)d->n_kv_heads, KVD_N_SIDES, wide, width},
        {"layer", "kv_head", "side", "row", "column"}};
    rc = rc || kvd_h5_write(f, &of_rank, H5T_NATIVE_INT64, rank, err) ||
         kvd_h5_write(f, &of_product, H5T_NATIVE_DOUBLE, product, err);
    free(rank);
    free(product);
    return rc ? -1 : 0;
}

static int make(const char *dump, const char *method, const char *fisher, const char *out,
                const kvd_run *run, kvd_err *err)
{
    kvd_activations a = {0};
    kvd_fisher g = {0};
    kvd_h5 f = {0};
    kvd_method m;
    int rc = kvd_method_parse(method, &m, err) || kvd_activations_open(&a, dump, err) ||
             (fisher && kvd_fisher_open(&g, fisher, err));
    if (!rc && m.plan.maker != &kvd_dims_palu)
        rc = kvd_fail(err, "%s is not palu", method);
    if (!rc) {
        const kvd_config c = {.n_layers = a.model.n_layers,
                              .n_heads = a.model.n_heads,
                              .n_kv_heads = a.model.n_kv_heads,
                              .d_head = a.model.d_head,
                              .positions = strcmp(a.model.rope_layout, "none")
                                               ? KVD_POSITIONS_ROPE
                                               : KVD_POSITIONS_LEARNED};
        const kvd_method_setup setup = {
            .config = &c, .calibration = &a, .fisher = fisher ? &g : NULL};
        kvd_plan plan = m.plan;
        rc = kvd_plan_open(&plan, &setup, err) || kvd_h5_create(&f, out, &schema, run, err) ||
             write_latents(&f, plan.dims, err) || kvd_h5_finish(&f, err);
        kvd_plan_close(&plan);
    }
    kvd_h5_close(&f, false);
    if (fisher)
        kvd_fisher_close(&g);
    kvd_activations_close(&a);
    return rc ? -1 : 0;
}

static int run(int argc, char **argv, kvd_err *err)
{
    kvd_common_options opt = {.seed = 1};
    kvd_run r;
    if (argc < 4 || argc > 5)
        return kvd_fail(err, "usage: tool_palu DUMP.h5 METHOD OUT.h5 [FISHER.h5]");
    if (kvd_run_start(&r, "tool_palu", argc, argv, &opt, err) ||
        kvd_run_parameter(&r, "method", err, "%s", argv[2]) ||
        kvd_run_add_input(&r, argv[1], err) || (argc > 4 && kvd_run_add_input(&r, argv[4], err)))
        return -1;
    const int rc = make(argv[1], argv[2], argc > 4 ? argv[4] : NULL, argv[3], &r, err);
    kvd_run_release(&r);
    return rc;
}

int main(int argc, char **argv)
{
    kvd_err err = {"unknown failure"};
    return kvd_run_exit("tool_palu", run(argc, argv, &err), &err);
}
