/* A small HDF5 file, and checks of error messages. */
#ifndef KVD_TESTS_H5_CASE_H
#define KVD_TESTS_H5_CASE_H

#include <string.h>

#include "common/files/h5.h"
#include "temp_folder.h"
#include "unit.h"

static kvd_err err;
static const char *folder;
static char path[64], partial[80], input[80];
static const kvd_schema schema = {"test", 2, "A test."}, other = {"other", 2, "Another."};
static kvd_run run;

static inline int make_folder(void **state)
{
    (void)state;
    static char *argv[] = {"kvdim-test", "a b", NULL};
    kvd_common_options opt = {.seed = UINT64_MAX, .threads = 1};
    folder = temp_folder();
    (void)snprintf(path, sizeof path, "%s/x.h5", folder);
    (void)snprintf(partial, sizeof partial, "%s.partial", path);
    (void)snprintf(input, sizeof input, "%s/input", folder);
    FILE *f = fopen(input, "w");
    if (!f || fclose(f))
        return -1;
    return kvd_run_start(&run, "kvdim-test", 2, argv, &opt, &err) ||
           kvd_run_parameter(&run, "tokens", &err, "%d", 7) || kvd_run_add_input(&run, input, &err);
}

static inline int release_run(void **state)
{
    (void)state;
    kvd_run_release(&run);
    return 0;
}

static inline void ok(int rc)
{
    if (rc)
        fail_msg("%s", err.msg);
}

/* Tests that the error message is `fmt`, in which %s is the file's path. */
static inline void says(const char *fmt)
{
    char want[600];
    /* cppcheck-suppress wrongPrintfScanfArgNum */
    (void)snprintf(want, sizeof want, fmt, path, path, path);
    assert_string_equal(err.msg, want);
}

static inline void says_in(const char *part)
{
    if (!strstr(err.msg, part))
        fail_msg("'%s' is not in \"%s\"", part, err.msg);
}

enum { A = 3, B = 4, C = 5 };
static const kvd_h5_spec values = {"/qk/sigma", "Singular values.",      "1", 0, 3,
                                   {A, B, C},   {"layer", "head", "dim"}};

static inline kvd_h5_spec values_spec(void)
{
    kvd_h5_spec s = values;
    s.type = H5T_IEEE_F64LE;
    return s;
}

static inline void write_file(void)
{
    kvd_h5 f;
    double x[A * B * C];
    const int64_t ids[2] = {-1, INT64_C(1) << 40};
    for (int i = 0; i < A * B * C; i++)
        x[i] = i * 0.5;
    kvd_h5_spec s = values_spec();
    const kvd_h5_spec t = {"/ids", "Ids.", "1", H5T_STD_I64LE, 1, {2}, {"token"}};
    ok(kvd_h5_create(&f, path, &schema, &run, &err));
    ok(kvd_h5_write(&f, &s, H5T_NATIVE_DOUBLE, x, &err));
    ok(kvd_h5_write(&f, &t, H5T_NATIVE_INT64, ids, &err));
    ok(kvd_h5_put_text(&f, "/model", "name", "demo", &err));
    ok(kvd_h5_put_int(&f, "/model", "n_layers", 6, &err));
    ok(kvd_h5_put_double(&f, "/model", "rope_theta", 1e4, &err));
    ok(kvd_h5_put_text(&f, "/qk/sigma", "rope", "after", &err));
    ok(kvd_h5_finish(&f, &err));
    kvd_h5_close(&f, false);
}

static inline void text_is(kvd_h5 *f, const char *where, const char *name, const char *want)
{
    char *text = NULL;
    ok(kvd_h5_get_text(f, where, name, &text, &err));
    assert_string_equal(text, want);
    free(text);
}

#endif
