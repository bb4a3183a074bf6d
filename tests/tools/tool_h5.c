/* Makes small kvdim files for test scripts.
 *
 * tool_h5 write OUT.h5 [SIDE]         arrays of numbers and texts; /values, a matrix of
 *                                     SIDE x SIDE doubles (default 8 x 8)
 * tool_h5 reserve OUT.h5 MB SECONDS   an array of MB MiB, with a pause while it is written
 * tool_h5 resume OUT.h5               reopens OUT.h5.partial, checks its contents, finishes
 * tool_h5 read OUT.h5 [SIDE]          reads the matrix /values */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/files/h5.h"
#include "common/half.h"
#include "common/rng.h"

static const kvd_schema schema = {"test", 1, "A small file for tests."};

static int write_small(kvd_h5 *f, kvd_err *err)
{
    static const float x[6] = {0, 1, -2.5f, 65504, 0.1f, 1e-5f};
    static const int64_t ids[4] = {0, 1, 50000, -1};
    static const char *const names[2] = {"alpha", "beta, gamma"};
    static const double n_tokens = 42;
    uint16_t half[6], brain[6];
    kvd_from_f32(KVD_F16, x, half, 6);
    kvd_from_f32(KVD_BF16, x, brain, 6);
    kvd_h5_spec s = {"/k/f16", "Six numbers as float16.", "1", kvd_h5_type_f16(), 2,
                     {2, 3},   {"token", "dim"}};
    if (kvd_h5_write(f, &s, kvd_h5_type_f16(), half, err))
        return -1;
    s.path = "/k/bf16", s.long_name = "Six numbers as bfloat16.", s.type = kvd_h5_type_bf16();
    if (kvd_h5_write(f, &s, kvd_h5_type_bf16(), brain, err) ||
        kvd_h5_put_text(f, "/k/bf16", "rope", "after", err))
        return -1;
    const kvd_h5_spec i = {"/ids", "Four ids.", "1", H5T_STD_I32LE, 1, {4}, {"token"}};
    const kvd_h5_spec n = {"/n_tokens", "Tokens.", "1", H5T_IEEE_F64LE, 0, {0}, {0}};
    if (kvd_h5_write(f, &i, H5T_NATIVE_INT64, ids, err) ||
        kvd_h5_write(f, &n, H5T_NATIVE_DOUBLE, &n_tokens, err))
        return -1;
    const hid_t text = H5Tcopy(H5T_C_S1);
    if (text < 0 || H5Tset_size(text, H5T_VARIABLE) < 0)
        return kvd_fail(err, "no text type");
    const kvd_h5_spec t = {"/rows/name", "Two names.", "1", text, 1, {2}, {"row"}};
    const int rc = kvd_h5_write(f, &t, text, names, err);
    H5Tclose(text);
    return rc;
}

static int write_values(kvd_h5 *f, size_t side, kvd_err *err)
{
    double *x = malloc(side * side * sizeof *x);
    if (!x)
        return kvd_no_memory(err, "values", side * side * sizeof *x);
    kvd_rng r;
    kvd_rng_seed(&r, 1, 0);
    for (size_t i = 0; i < side * side; i++)
        x[i] = kvd_rng_normal(&r);
    const kvd_h5_spec s = {"/values",    "Normal numbers.", "1", H5T_IEEE_F64LE, 2,
                           {side, side}, {"row", "column"}};
    const int rc = kvd_h5_write(f, &s, H5T_NATIVE_DOUBLE, x, err);
    free(x);
    return rc;
}

enum { ROW = 1 << 18 };

static int fill(kvd_h5 *f, size_t rows, double seconds, kvd_err *err)
{
    hid_t dataset;
    const kvd_h5_spec s = {"/dump",     "Row numbers.",   "1", H5T_IEEE_F32LE, 2,
                           {rows, ROW}, {"row", "column"}};
    float *x = malloc(ROW * sizeof *x);
    if (!x)
        return kvd_no_memory(err, "a row", ROW * sizeof *x);
    int rc = kvd_h5_reserve(f, &s, &dataset, err) || kvd_h5_put_int(f, "/", "rows_done", 0, err) ||
             kvd_h5_sync(f, err);
    for (size_t i = 0; !rc && i < rows; i++) {
        for (size_t j = 0; j < ROW; j++)
            x[j] = (float)i;
        const hsize_t start[2] = {i, 0}, count[2] = {1, ROW};
        rc = kvd_h5_write_slab(dataset, "/dump", 2, start, count, H5T_IEEE_F32LE, x, err) ||
             kvd_h5_put_int(f, "/", "rows_done", (int64_t)i + 1, err) || kvd_h5_sync(f, err);
        if (i == rows / 2)
            (void)usleep((useconds_t)(1e6 * seconds));
    }
    free(x);
    return rc;
}

static int check_fill(kvd_h5 *f, kvd_err *err)
{
    hsize_t dims[2];
    int64_t done;
    if (kvd_h5_shape(f, "/dump", 2, dims, err) || kvd_h5_get_int(f, "/", "rows_done", &done, err))
        return -1;
    const hid_t dataset = H5Dopen2(f->id, "/dump", H5P_DEFAULT);
    for (int64_t i = 0; i < done; i++) {
        const hsize_t start[2] = {(hsize_t)i, 7}, count[2] = {1, 1};
        float x = -1;
        if (kvd_h5_read_slab(dataset, "/dump", 2, start, count, H5T_NATIVE_FLOAT, &x, err))
            return -1;
        if (x != (float)i)
            return kvd_fail(err, "row %lld holds %g", (long long)i, (double)x);
    }
    printf("%lld rows were there\n", (long long)done);
    return 0;
}

static int run(int argc, char **argv, kvd_err *err)
{
    kvd_common_options opt = {.seed = 1};
    kvd_run r;
    kvd_h5 f = {0};
    if (argc < 3)
        return kvd_fail(err, "which action on which file?");
    if (kvd_run_start(&r, "tool_h5", argc, argv, &opt, err) ||
        kvd_run_parameter(&r, "side", err, "%d", 8) || kvd_run_add_input(&r, argv[0], err))
        return -1;
    const size_t n = argc > 3 ? strtoul(argv[3], NULL, 10) : 8;
    int rc = -1;
    if (!strcmp(argv[1], "read")) {
        hsize_t dims[2] = {n, n};
        double *x = malloc(n * n * sizeof *x);
        rc = !x || kvd_h5_open(&f, argv[2], &schema, err) ||
             kvd_h5_read_finite(&f, "/values", 2, dims, x, err);
        free(x);
    } else if (!strcmp(argv[1], "write")) {
        rc = kvd_h5_create(&f, argv[2], &schema, &r, err) || write_small(&f, err) ||
             write_values(&f, n, err) || kvd_h5_finish(&f, err);
    } else if (!strcmp(argv[1], "reserve")) {
        rc = kvd_h5_create(&f, argv[2], &schema, &r, err) ||
             fill(&f, n, argc > 4 ? strtod(argv[4], NULL) : 0, err) || kvd_h5_finish(&f, err);
    } else if (!strcmp(argv[1], "resume")) {
        rc = kvd_h5_reopen(&f, argv[2], &schema, &r, err);
        if (!rc && f.id < 0)
            rc = kvd_fail(err, "there is nothing to resume");
        rc = rc || check_fill(&f, err) || kvd_h5_finish(&f, err);
    }
    kvd_h5_close(&f, false);
    kvd_run_release(&r);
    return rc;
}

int main(int argc, char **argv)
{
    kvd_err err = {"unknown action"};
    return kvd_run_exit("tool_h5", run(argc, argv, &err), &err);
}
