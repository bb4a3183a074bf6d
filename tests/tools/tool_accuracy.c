/* usage: tool_accuracy OUT.h5 LABEL CALIBRATION SCALE
 *
 * Writes an accuracy file of methods none, zack and uniform: 8 sequences, 100 predictions.
 * p: removed fraction of the cache, 0.25, 0.5 or 0.75.
 * Loss in nats per prediction: SCALE * p (zack) or twice that (uniform).
 * Attention error D of layer l: |SCALE| * p * (l + 1). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/run.h"
#include "formats/model_info.h"
#include "formats/rows.h"

enum { LAYERS = 2, HEADS = 4, SEQUENCES = 8, ROWS = 7, PREDICTIONS = 100 };

static const kvd_column columns[] = {
    {"method", KVD_COL_TEXT, "1", "method"},
    {"label", KVD_COL_TEXT, "1", "evaluated text"},
    {"calibration", KVD_COL_TEXT, "1", "calibration text"},
    {"purpose", KVD_COL_TEXT, "1", "purpose"},
    {"rule", KVD_COL_TEXT, "1", "rule"},
    {"cache", KVD_COL_TEXT, "1", "cache"},
    {"p_wanted", KVD_COL_REAL, "1", "p asked for"},
    {"overall_p", KVD_COL_REAL, "1", "p"},
    {"overall_p16", KVD_COL_REAL, "1", "p padded"},
    {"n_predictions", KVD_COL_INT, "1", "predictions"},
    {"perplexity", KVD_COL_REAL, "1", "perplexity"},
    {"top1_share", KVD_COL_REAL, "1", "share"},
    {"top1_share_lo", KVD_COL_REAL, "1", "share, lower end"},
    {"top1_share_hi", KVD_COL_REAL, "1", "share, upper end"},
    {"kl", KVD_COL_REAL, "nat", "KL"},
    {"kl_lo", KVD_COL_REAL, "nat", "KL, lower end"},
    {"kl_hi", KVD_COL_REAL, "nat", "KL, upper end"},
    {"attention_error", KVD_COL_REAL, "1", "D"},
    {"attention_error_zdc", KVD_COL_REAL, "1", "D as printed"},
    {"element_bytes", KVD_COL_INT, "byte", "bytes"},
    {"bytes_per_token_dense", KVD_COL_REAL, "byte", "dense"},
    {"bytes_per_token_padded", KVD_COL_REAL, "byte", "padded"},
    {"basis_bytes", KVD_COL_REAL, "byte", "bases"},
};

typedef struct {
    double nll[ROWS][SEQUENCES], n[SEQUENCES], d[ROWS][LAYERS][HEADS];
} samples;

static int add_row(kvd_rows *rows, samples *x, int i, const char *label, const char *calibration,
                   double scale, kvd_err *err)
{
    const bool none = i == 0, uniform = i > 3;
    const double p = none ? 0 : 0.25 * ((i - 1) % 3 + 1), loss = (uniform ? 2 : 1) * scale * p;
    if (kvd_rows_begin(rows, err))
        return -1;
    kvd_rows_text(rows, "method", none ? "none" : uniform ? "uniform" : "zack");
    kvd_rows_text(rows, "label", label);
    kvd_rows_text(rows, "calibration", none ? "" : calibration);
    kvd_rows_text(rows, "purpose", "point");
    kvd_rows_text(rows, "rule", none ? "none" : uniform ? "uniform" : "eq6");
    kvd_rows_text(rows, "cache", "f32");
    kvd_rows_real(rows, "p_wanted", none ? (double)NAN : p);
    kvd_rows_real(rows, "overall_p", p);
    kvd_rows_real(rows, "overall_p16", p / 2);
    kvd_rows_int(rows, "n_predictions", SEQUENCES * PREDICTIONS);
    kvd_rows_real(rows, "perplexity", exp(3 + loss));
    kvd_rows_real(rows, "top1_share", fmax(0, 1 - loss * p));
    kvd_rows_real(rows, "top1_share_lo", fmax(0, 1 - loss * p - 0.005));
    kvd_rows_real(rows, "top1_share_hi", fmax(0, 1 - loss * p + 0.005));
    kvd_rows_real(rows, "kl", fabs(loss));
    kvd_rows_real(rows, "kl_lo", 0.9 * fabs(loss));
    kvd_rows_real(rows, "kl_hi", 1.1 * fabs(loss));
    kvd_rows_real(rows, "attention_error", 1.5 * p * fabs(scale));
    kvd_rows_real(rows, "attention_error_zdc", 1.5 * p * fabs(scale));
    kvd_rows_int(rows, "element_bytes", 2);
    kvd_rows_real(rows, "bytes_per_token_dense", 512);
    kvd_rows_real(rows, "bytes_per_token_padded", 512 * (1 - p / 2));
    kvd_rows_real(rows, "basis_bytes", none ? 0 : 4096);
    for (int s = 0; s < SEQUENCES; s++) {
        x->n[s] = PREDICTIONS;
        x->nll[i][s] = PREDICTIONS * (3 + 0.1 * s + loss);
    }
    for (int l = 0; l < LAYERS; l++)
        for (int h = 0; h < HEADS; h++)
            x->d[i][l][h] = p * (l + 1) * fabs(scale);
    return 0;
}

static int write_samples(kvd_h5 *f, const samples *x, kvd_err *err)
{
    const kvd_h5_spec specs[] = {
        {"/sequences/n", "predictions", "1", H5T_IEEE_F64LE, 1, {SEQUENCES}, {"sequence"}},
        {"/sequences/nll",
         "log-likelihoods",
         "nat",
         H5T_IEEE_F64LE,
         2,
         {ROWS, SEQUENCES},
         {"row", "sequence"}},
        {"/attention_error/relative",
         "D",
         "1",
         H5T_IEEE_F64LE,
         3,
         {ROWS, LAYERS, HEADS},
         {"row", "layer", "head"}},
        {"/attention_error/zdc",
         "D",
         "1",
         H5T_IEEE_F64LE,
         3,
         {ROWS, LAYERS, HEADS},
         {"row", "layer", "head"}},
    };
    const double *const data[] = {x->n, x->nll[0], x->d[0][0], x->d[0][0]};
    for (size_t i = 0; i < 4; i++)
        if (kvd_h5_write(f, &specs[i], H5T_NATIVE_DOUBLE, data[i], err))
            return -1;
    return kvd_h5_put_double(f, "/target/zack", "target", 0.99, err) ||
                   kvd_h5_put_double(f, "/target/zack", "p", 0.3125, err) ||
                   kvd_h5_put_double(f, "/target/zack", "p_misses", 0.315, err) ||
                   kvd_h5_put_double(f, "/target/zack", "p_lo", 0.25, err) ||
                   kvd_h5_put_double(f, "/target/zack", "p_hi", 0.375, err) ||
                   kvd_h5_put_int(f, "/target/zack", "monotone", 1, err) ||
                   kvd_h5_put_int(f, "/target/zack", "n_points", 9, err)
               ? -1
               : 0;
}

int main(int argc, char **argv)
{
    static const kvd_schema schema = {"accuracy", 1,
                                      "Quality of predictions with compressed KV caches"};
    static samples x;
    kvd_common_options opt = {.seed = 1, .threads = 1};
    kvd_run run = {0};
    kvd_h5 f = {.id = H5I_INVALID_HID};
    kvd_err err = {""};
    double scale;
    if (argc != 5)
        return 2;
    kvd_rows *rows = kvd_rows_new(columns, sizeof columns / sizeof *columns, &err);
    int status = !rows || kvd_arg_double("SCALE", argv[4], -1, 10, &scale, &err) ||
                 kvd_run_start(&run, "tool_accuracy", argc, argv, &opt, &err);
    for (int i = 0; !status && i < ROWS; i++)
        status = add_row(rows, &x, i, argv[2], argv[3], scale, &err);
    kvd_model_info m = {.name = "synthetic",
                        .hash = "xxh3:00000000000000000000000000000001",
                        .family = "llama",
                        .n_layers = LAYERS,
                        .n_heads = HEADS,
                        .n_kv_heads = 2,
                        .d_head = 8,
                        .d_model = 32,
                        .vocab_size = 100,
                        .max_positions = 128,
                        .rope_theta = 10000,
                        .rope_layout = "half",
                        .dtype = "f32"};
    status = status || kvd_h5_create(&f, argv[1], &schema, &run, &err) ||
             kvd_model_info_write(&f, &m, &err) || kvd_rows_write(&f, rows, &err) ||
             write_samples(&f, &x, &err) || kvd_h5_finish(&f, &err);
    kvd_h5_close(&f, false);
    kvd_rows_free(rows);
    kvd_run_release(&run);
    return kvd_run_exit("tool_accuracy", status, &err);
}
